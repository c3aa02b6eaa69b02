"""The options of a run: which of them decide its numbers, and what the run is called.

Options are seen flat: ``rule`` is a name and ``rule.c`` an option of the rule.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from comity.config import COMPONENTS, LOCAL, LOCAL_OPTIONS, Config

Flat = dict[str, Any]

GUARDED = {"mixture": "guarded"}
"""What a method is called under a guard, where it is not the guard's own name."""


def titled(method: str, rule: str, guard: str | None = None) -> str:
    """``FedAvg, guarded + Mean``: what a run, or a line of a table, is called; ``rule`` is empty where it has none."""
    name = method if guard is None else f"{method}, {GUARDED.get(guard, guard)}"
    return f"{name} + {rule}" if rule else name


def title_of(config: Config, own_rule: bool) -> str:
    """What a run is called; ``own_rule``: no rule can be chosen for it."""
    guard = None if config.guard is None else str(config.guard)
    return titled(str(config.method), "" if own_rule else str(config.rule), guard)


_UNDECISIVE = {f.name for f in fields(Config) if not f.metadata["decides"]} | {"seed"}


def flatten(options: Mapping[str, Any], *, own_rule: bool = False) -> Flat:
    """The options that decide the numbers, apart from the seed.

    ``own_rule``: no rule can be chosen, so the configured one decides nothing. Local sends no updates to any rule, and
    its models are the same at every moment of judgement.
    """
    flat: Flat = {}
    for key, value in options.items():
        if key in COMPONENTS and isinstance(value, Mapping):
            flat |= {key if name == "name" else f"{key}.{name}": inner for name, inner in value.items()}
        elif key not in _UNDECISIVE:
            flat[key] = value
    idle = LOCAL_OPTIONS.keys() - {"method"} if flat.get("method") == LOCAL else {"rule"} if own_rule else set()
    return {key: value for key, value in flat.items() if component_of(key) not in idle}


def component_of(key: str) -> str:
    """``rule`` of ``rule.c``."""
    return key.partition(".")[0]


def show(value: Any, key: str = "") -> str:
    """The value of an option in words."""
    if value is None and key == "guard":
        return "none"
    if isinstance(value, (list, tuple)):
        return "×".join(map(str, value))
    return "default" if value is None else str(value)
