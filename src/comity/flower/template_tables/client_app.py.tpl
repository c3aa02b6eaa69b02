"""The client's side: any verb of the method, where the table is."""

from comity.flower import client_app

from $package.data import own

app = client_app(own=own, keep="~/comity/$name"$allow)
