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

# How long the server waits, in seconds: for an answer, for the answer to one verb (0: the same), for a new node to
# report which client it is, and at the start for this many clients to connect (0: all).
flower.timeout = 3600.0
$timeouts
flower.timeout-query = 120.0
flower.wait = 600.0
flower.clients = 0
# How long a question waits for a client that is not connected, or that left with the question, to connect (again).
flower.wait-absent = 0.0
# The folder of a run to resume after the server was stopped.
flower.resume = ""
# Answer `comity ask` with so many seeds (6 test each row twice) in place of training; for tables at their sites.
flower.ask = 0
# Seats reserved for one node each, by its id or public key: "0:<node id> 1:<public key>". Other seats belong to the key
# that takes them first; "any" lets a SuperNode without a key of its own come back after a restart.
flower.seats = ""
