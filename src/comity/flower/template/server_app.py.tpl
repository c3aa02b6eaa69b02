"""The server's side: the run of this app's configuration."""

from comity.flower import server_app

from $package.data import own

app = server_app(own=own$allow)
