"""The client's app: trains and evaluates on this site's table."""

from comity.flower import client_app

from $package.data import own

app = client_app(own=own, keep="~/comity/$name"$allow)
