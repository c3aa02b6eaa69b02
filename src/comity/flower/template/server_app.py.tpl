"""The server's app: runs the configuration in pyproject.toml."""

from comity.flower import server_app

from $package.data import own

app = server_app(own=own$allow)
