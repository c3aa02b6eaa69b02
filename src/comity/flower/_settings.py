"""A configuration as Flower knows it: flat entries of the app's pyproject.toml, overridden by ``flwr run -c``.

Flower lets nobody override what an app does not list, so every option is listed, also those that are left alone.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app.user_config import UserConfig, UserConfigValue

from comity.config import COMPONENTS, Config, Overlay, refuse_code

OURS = "flower"
"""Entries ``flower.*`` say how to run on Flower; they are no options of a run."""


def config_of(entries: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """From ``{"rounds": 5, "rule.name": "ConFREE", "rule.c": 0.4}``; see ``refuse_code`` for ``allow_code``."""
    ours = {key.removesuffix(".name"): value for key, value in entries.items() if not key.startswith(f"{OURS}.")}
    if not allow_code:
        refuse_code(ours, "the app's configuration")
    if ours.get("device", "auto") == "auto":
        ours["device"] = "cpu"  # all must have the same configuration; a node may still say its own device
    missing = {kind for kind in COMPONENTS if ours.get(kind) == "none"}
    return Config.of({key: value for key, value in ours.items() if key.partition(".")[0] not in missing})


def entries_of(config: Config) -> UserConfig:
    """Every option with a single value, a component's name as ``rule.name``; ``none`` stands for nothing."""
    entries = Overlay(config.plain())
    return {f"{key}.name" if key in COMPONENTS else key: _single_value(value) for key, value in entries.items()}


def _single_value(value: Any) -> UserConfigValue:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
