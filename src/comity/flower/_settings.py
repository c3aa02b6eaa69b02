"""A configuration as Flower knows it: flat entries of the app's pyproject.toml, overridden by ``flwr run -c``.

Flower lets nobody override what an app does not list, so every option is listed, also those that are left alone.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app.user_config import UserConfig, UserConfigValue

from comity._components import Component
from comity.config import COMPONENTS, Config

OURS = "flower"
"""Entries ``flower.*`` say how to run on Flower; they are no options of a run."""


def config_of(entries: Mapping[str, Any]) -> Config:
    """From ``{"rounds": 5, "rule.name": "ConFREE", "rule.c": 0.4}``."""
    nested: dict[str, Any] = {}
    for key, value in entries.items():
        room, dot, option = key.partition(".")
        if dot and room != OURS:
            nested.setdefault(room, {})[option] = value
        elif not dot:
            nested[room] = value
    return Config.of({key: value for key, value in nested.items() if value != {"name": "none"}})


def entries_of(config: Config) -> UserConfig:
    """Every option with a plain value; ``none`` stands for nothing."""
    entries: UserConfig = {}
    for key in config.plain():
        value = getattr(config, key)
        if isinstance(value, Component):
            entries[f"{key}.name"] = value.name
            entries |= {f"{key}.{name}": _flat(option) for name, option in value.options.items()}
        else:
            entries[f"{key}.name" if key in COMPONENTS else key] = _flat(value)
    return entries


def _flat(value: Any) -> UserConfigValue:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
