"""A thin Flower app for a configuration."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from string import Template

from flwr.app.user_config import UserConfig

from comity import __version__
from comity._errors import ComityError
from comity._write import write_text
from comity.config import CLIENTS, Config, code_in
from comity.engine import settled, verbs_for
from comity.flower._settings import entries_of
from comity.results.conditions import title_of

PYPROJECT = """\
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

# How long the server waits, in seconds: for an answer, for the answer to one verb where that is another (not 0), for a
# new node to say which client it is, and at the start for so many clients to be there (0 for all).
flower.timeout = 3600.0
$timeouts
flower.timeout-query = 120.0
flower.wait = 600.0
flower.clients = 0
# How long a question waits for a client that is away, or that left with the question, to come (back) and be asked.
flower.wait-absent = 0.0
# The folder of a run to go on with, where the server was stopped.
flower.resume = ""
# Which node alone may be which client, by its id or public key: "0:<node id> 1:<public key>". Others: who is first.
flower.seats = ""
"""

APP = '''\
"""What $does."""

from comity.flower import $app

from $package.data import own

app = $app(own=own$allow)
'''

DATA = '''\
"""Where a site puts its own data.

As it stands every node takes its part of the configuration's federation ($data), which is for trying things out: what
it computes is then what `comity run` computes. For data of your own, write `load` and take the last line out.
"""

import torch
from flwr.app import Context

from comity.data import ClientData, Split
from comity.flower import OwnData


def load(context: Context) -> ClientData:
    """This site's samples: x float32 (n, channels, height, width), y int64 (n,)."""
    kept = torch.load(str(context.node_config["data"]))  # flower-supernode --node-config "data='/srv/mine.pt' ..."
    nothing = Split(kept["x"][:0], kept["y"][:0])
    return ClientData(
        id=int(context.node_config["partition-id"]),
        train=Split(kept["x"], kept["y"]),
        val=nothing,  # FEDORA and a few others need some
        test=Split(kept["test_x"], kept["test_y"]),
    )


own: OwnData | None = OwnData(shape=(1, 28, 28), classes=10, load=load)
own = None  # take this line out
'''

README = """\
# $title on Flower

Written by `comity flower new`. The app is thin: it imports the installed `comity`, which every machine must have
with its extra `flower`. `pyproject.toml` holds the configuration, `$package/data.py` is where a site puts its own data.

On one machine, without encryption, to try it:

```sh
export FLWR_TELEMETRY_ENABLED=0     # Flower sends usage data to its makers unless told not to
flower-superlink --insecure --host 127.0.0.1 --port 8000 --disable-runtime-dependency-installation &
for i in $$(seq 0 $last); do
  flower-supernode --insecure --superlink 127.0.0.1:8000 --port $$((9000 + i)) \\
    --node-config "partition-id=$$i num-partitions=$clients" &
done
mkdir -p ~/.flwr && printf '[superlink.here]\\naddress = "127.0.0.1:8000"\\ninsecure = true\\n' >> ~/.flwr/config.toml
flwr run . here --stream
```

With TLS and node authentication, as it should be done between hospitals: docs/deploy.md of comity.

The server sees every client's update: the rules compare them with each other. Secure aggregation, which hides them,
cannot be combined with this app. What a client keeps to itself stays on its node.
"""


def write_app(folder: Path, config: Config) -> None:
    """The app's files; a folder that holds something already is refused."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ComityError(f"{folder} exists and is not empty; give another folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    package = name.replace("-", "_")
    package = package if package.isidentifier() else f"app_{package}"
    config = settled(config.with_(device="cpu") if config.device == "auto" else config)
    clients = config.clients or CLIENTS
    words = {
        "name": name,
        "package": package,
        "title": title_of(config, config.method.trait("brings_rule", False)),
        "version": __version__,
        "data": str(config.data),
        "entries": toml(entries_of(config)),
        "timeouts": "\n".join(f"flower.timeout-{verb} = 0.0" for verb in verbs_for(config) if verb != "export"),
        "allow": ", allow_code=True" if code_in(config.plain()) else "",
        "clients": str(clients),
        "last": str(clients - 1),
    }
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{package}/__init__.py": "",
        f"{package}/client_app.py": APP,
        f"{package}/server_app.py": APP,
        f"{package}/data.py": DATA,
    }
    does = {
        "client_app": "a node does: any verb of the method, where the data is",
        "server_app": "the server does: the run of this app's configuration",
    }
    is_new = not folder.exists()
    try:
        for file, text in files.items():
            app = Path(file).stem
            write_text(folder / file, Template(text).substitute(words, app=app, does=does.get(app, "")))
    except BaseException:  # half an app is none
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new and folder.is_dir():
            folder.rmdir()
        raise


def toml(entries: UserConfig) -> str:
    """Lines of a TOML table, under the headings that ``comity run --help`` has."""
    lines, last = [], None
    groups = {f.name: f.metadata["group"] for f in fields(Config)}
    for key, value in entries.items():
        group = groups[key.partition(".")[0]]
        if group != last:
            lines.append(f"# {group}")
        last = group
        lines.append(f"{key} = {json.dumps(value) if isinstance(value, (bool, str)) else repr(value)}")
    return "\n".join(lines)
