[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "1.0.0"
description = "$title on Flower"
license = "Apache-2.0"
dependencies = ["comity[flower]>=$version"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "comity"

[tool.flwr.app.components]
serverapp = "$package.server_app:app"
clientapp = "$package.client_app:app"

# Options of `comity run`; `flwr run -c "rounds=5 rule.c=0.3"` overrides them.
[tool.flwr.app.config]
$entries

# Seconds that the server waits: `timeout` for a reply, `timeout-fit` and so on for a reply to one kind of message
# (0 = timeout), `timeout-query` for a new node to report which client it is, and `wait`, at the start, until `clients`
# clients have connected (0 = all).
flower.timeout = 3600.0
$timeouts
flower.timeout-query = 120.0
flower.wait = 600.0
flower.clients = 0
# Seconds that a message waits for a client that is not connected, or that disconnected before it replied, to connect.
flower.wait-absent = 0.0
# The folder of a run to resume after the server was stopped.
flower.resume = ""
# Number of seeds for an estimate like that of `comity ask` instead of training (6 test each row twice; 0 = train).
# Only for tables at their sites.
flower.ask = 0
# Which node may be which client, by node id or public key: "0:<node id> 1:<public key>". Other clients belong to the
# key that claims them first; "any" lets a SuperNode without a key of its own come back after a restart.
flower.seats = ""
