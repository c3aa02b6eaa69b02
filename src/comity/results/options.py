"""The options of a run that decide its numbers.

Options are seen flat: ``rule`` is a name and ``rule.c`` an option of the rule.
"""

from collections.abc import Mapping
from typing import Any

from comity._options import options as declared
from comity.config import LOCAL, LOCAL_OPTIONS, Config, Overlay

Flat = dict[str, Any]

_UNDECISIVE = {option.name for option in declared(Config).values() if not option.decides} | {"seed"}


def flatten(options: Mapping[str, Any], *, own_rule: bool = False) -> Flat:
    """The options that decide the numbers, apart from the seed.

    ``own_rule``: no rule can be chosen, so the configured one decides nothing. Local sends no updates to any rule, and
    its models are the same at every moment of judgement.
    """
    flat = Overlay(options).without(_UNDECISIVE)
    idle = LOCAL_OPTIONS.keys() - {"method"} if flat.get("method") == LOCAL else {"rule"} if own_rule else set()
    return flat.without(idle)


def show(value: Any, key: str = "") -> str:
    """The value of an option in words."""
    if value is None and key == "guard":
        return "none"
    if isinstance(value, (list, tuple)):
        return "×".join(map(str, value))
    return "default" if value is None else str(value)
