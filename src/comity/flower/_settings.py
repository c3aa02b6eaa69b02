"""A configuration as Flower knows it: flat entries of the app's pyproject.toml, overridden by ``flwr run -c``."""

from collections.abc import Mapping
from typing import Any

from flwr.app.user_config import UserConfig

from comity._components import Component
from comity._errors import ComityError
from comity.config import COMPONENTS, Config

OURS = "flower"
"""Entries ``flower.*`` say how to run on Flower; they are no options of a run."""
ALWAYS = ("data", "partition", "clients", "model", "method", "rule", "rounds", "epochs", "batch_size", "lr", "seed")
"""Options that an app shows even where they have their default."""


def config_of(entries: Mapping[str, Any]) -> Config:
    """From ``{"rounds": 5, "rule.name": "ConFREE", "rule.c": 0.4}``."""
    nested: dict[str, Any] = {}
    for key, value in entries.items():
        room, dot, option = key.partition(".")
        if room == OURS:
            continue
        if dot:
            nested.setdefault(room, {})[option] = value
        else:
            nested[room] = value
    return Config.of(nested)


def entries_of(config: Config) -> UserConfig:
    """What an app's pyproject.toml holds: what is not the default, and what everybody wants to see."""
    usual = Config()
    entries: UserConfig = {}
    for key, value in ((key, getattr(config, key)) for key in config.plain()):
        if key in COMPONENTS and value is not None:
            entries |= _component(value)
        elif value is not None and (key in ALWAYS or value != getattr(usual, key)):
            entries[key] = _flat(value)
    return entries


def _component(component: Component) -> UserConfig:
    try:
        usual = Component.parse(component.kind, component.name).options
    except ComityError:  # it has options that it cannot do without
        usual = {}
    own = {name: value for name, value in component.options.items() if name not in usual or value != usual[name]}
    return {f"{component.kind}.name": component.name} | {
        f"{component.kind}.{name}": _flat(value) for name, value in own.items()
    }


def _flat(value: Any) -> bool | int | float | str:
    if isinstance(value, (bool, int, float, str)):
        return value
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
