"""A configuration as a Flower app: flat entries of pyproject.toml, which ``flwr run -c`` overrides, and its files.

Flower lets users override only entries that an app lists, so every option is listed.
"""

import json
import re
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from flwr.app.user_config import UserConfig, UserConfigValue
from msgspec.structs import replace

from comity import __version__
from comity._errors import ComityError
from comity._options import options
from comity._write import write_text
from comity.config import ACCURACY, CLIENTS, COMPONENTS, Config, Overlay, code_in, reject_code
from comity.data import MIN_COUNT, SITES, Schema, schema_text
from comity.engine import RunPlan
from comity.flower._own import SCHEMA, Tables

METRIC = (
    "the metric that sites are compared by: accuracy, or balanced if one class is rare at some sites, or log-loss, "
    "brier, auc"
)
OURS = "flower"
"""Entries ``flower.*`` configure Flower; they are not options of a run."""


def config_of(entries: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """Config from ``{"rounds": 5, "rule.name": "ConFREE", "rule.c": 0.4}``; ``allow_code`` as in ``read_yaml``."""
    ours = {key.removesuffix(".name"): value for key, value in entries.items() if not key.startswith(f"{OURS}.")}
    if not allow_code:
        reject_code(ours, "the app's configuration")
    if ours.get("device", "auto") == "auto":
        ours["device"] = "cpu"  # all must have the same configuration; a node may still choose its own device
    missing = {kind for kind in COMPONENTS if ours.get(kind) == "none"}
    return Config.of({key: value for key, value in ours.items() if key.partition(".")[0] not in missing})


def entries_of(config: Config) -> UserConfig:
    """Every option with a single value, a component's name as ``rule.name``; ``none`` means not set."""
    entries = Overlay(config.plain())
    return {f"{key}.name" if key in COMPONENTS else key: _single_value(value) for key, value in entries.items()}


def _single_value(value: Any) -> UserConfigValue:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def write_app(folder: Path, config: Config, schema: Path | None = None) -> None:
    """Write the app's files; rejects a folder that is not empty.

    With ``schema`` the clients are those of a common schema, and each site reads its own table with it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ComityError(f"{folder} exists and is not empty; give another folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    package = name.replace("-", "_")
    package = package if package.isidentifier() else f"app_{package}"
    tables = None if schema is None else Tables(schema)
    if tables is not None:
        config = _for_tables(config, tables.schema, name)
    config = config.with_(device="cpu") if config.device == "auto" else config
    plan = RunPlan(config, None if tables is None else tables.federation(config))
    config = plan.config
    if tables is not None:
        _ = plan.site  # invalid runs are rejected here
    clients = config.clients or CLIENTS
    words = {
        "name": name,
        "package": package,
        "title": config.title(config.method.trait("brings_rule", False)),
        "version": __version__,
        "data": str(config.data),
        "entries": toml(entries_of(config), {} if tables is None else {"metric": METRIC}),
        "timeouts": "\n".join(f"flower.timeout-{verb} = 0.0" for verb in plan.verbs if verb != "export"),
        "allow": ", allow_code=True" if code_in(config.plain()) else "",
        "clients": str(clients),
        "last": str(clients - 1),
    }
    texts, templates = {f"{package}/__init__.py": ""}, ["template"]
    if tables is not None:
        # the schema of a pooled table has no minimum count, but no site should send the sum of one value
        common = replace(tables.schema, min_count=tables.schema.min_count or MIN_COUNT)
        texts[f"{package}/{SCHEMA}"] = schema_text(common)
        words |= {"client": common.client or "", "names": ", ".join(common.clients)}
        words |= {"out": str(config.out), "least": str(common.min_count)}
        templates.append("template_tables")  # these replace files of the same name
    for source in (file for each in templates for file in (files("comity.flower") / each).iterdir()):
        file = source.name.removesuffix(".tpl")
        text = Template(source.read_text(encoding="utf-8")).substitute(words)
        texts[f"{package}/{file}" if file.endswith(".py") else file] = text
    try:
        for file, text in texts.items():
            write_text(folder / file, text)
    except BaseException:  # never leave an incomplete app
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _for_tables(config: Config, schema: Schema, name: str) -> Config:
    """The complete configuration of a federation whose tables stay at their sites.

    No machine sees the classes of all sites, so the metric cannot be chosen by them.
    """
    if config.partition is not None and config.partition.name != "natural":
        raise ComityError(f"partition must be left out, got {config.partition}: the schema names the clients")
    return config.with_(
        data=SITES,
        clients=config.clients or len(schema.clients),
        metric=config.metric or ACCURACY,
        out=config.out or Path("runs") / name,
    )


def toml(entries: UserConfig, remarks: Mapping[str, str]) -> str:
    """Lines of a TOML table, under the headings of ``comity run --help``; ``remarks`` are comments above an entry."""
    lines, last = [], None
    for key, value in entries.items():
        group = options(Config)[key.partition(".")[0]].section
        if group != last:
            lines.append(f"# {group}")
        last = group
        lines += [f"# {remarks[key]}"] if key in remarks else []
        lines.append(f"{key} = {json.dumps(value) if isinstance(value, (bool, str)) else repr(value)}")
    return "\n".join(lines)
