"""Which options differ among runs, under which conditions they are compared, and which Local belongs to a run."""

from collections.abc import Iterable
from typing import Any

from comity._labels import titled
from comity._overlay import owner
from comity.config import COMPONENTS, LOCAL_OPTIONS
from comity.results import Flat, show


def compared(flat: Flat) -> set[str]:
    """The components and options that are compared with each other, as opposed to conditions.

    If Local learns from all samples, the validation share is a choice of each configuration. So is the learning rate if
    Local has its own.
    """
    held_out = {"val_share"} if flat.get("local_on") == "all" else set()
    rate = {"lr"} if flat.get("local_lr") is not None else set()
    return {"method", "rule", "guard", "guard_split", "refit"} | held_out | rate


def of_cell(flat: Flat) -> Flat:
    """The options of a cell: method, rule and guard with their options."""
    return {key: value for key, value in flat.items() if owner(key) in compared(flat)}


def of_setting(flat: Flat) -> Flat:
    """The options of a setting: all conditions under which methods, rules and guards are compared."""
    return {key: value for key, value in flat.items() if owner(key) not in compared(flat)}


def shared_with_local(flat: Flat) -> Flat:
    """The conditions that a run shares with its local baseline."""
    own = {} if (rate := flat.get("local_lr")) is None else {"lr": rate}
    others = LOCAL_OPTIONS.keys() | compared(flat)
    return {key: value for key, value in flat.items() if owner(key) not in others} | own


class Varying:
    """The options that differ among runs, except the names of method and rule.

    An option of a component is compared only among runs with that component: ``scope`` of two rules is not one option.
    """

    def __init__(self, flats: Iterable[Flat]) -> None:
        values: dict[tuple[str, Any], set[str]] = {}
        for flat in flats:
            for key in flat:
                values.setdefault(_owned(key, flat), set()).add(repr(flat[key]))
        self._owned = {key for key, seen in values.items() if len(seen) > 1 and key[0] not in ("method", "rule")}
        self.keys = list(dict.fromkeys(key for key, owner in values if (key, owner) in self._owned))

    def of(self, flat: Flat, *components: str) -> Flat:
        """The varying options of these components, or by default of the setting."""
        wanted = components or tuple({owner(key) for key in flat} - compared(flat))
        return {k: v for k, v in flat.items() if owner(k) in wanted and _owned(k, flat) in self._owned}

    def label(self, flat: Flat, component: str) -> str:
        """``ConFREE (c=0.3)``: a component with its varying options; a method also with its guard."""
        name, options = show(flat.get(component, "")), self.of(flat, component)
        if component == "method":
            options |= self.of(flat, *compared(flat) - {"method", "rule"})
            options.pop("guard", None)
            name = titled(name, guard=flat.get("guard"))
        return f"{name} ({in_words(options)})" if options else name


def _owned(key: str, flat: Flat) -> tuple[str, Any]:
    """An option with the component that it belongs to; the validation share belongs to method and guard."""
    component, dot, _ = key.partition(".")
    if not dot and key in compared(flat) - {"method", "rule", "guard"}:
        return key, (flat.get("method"), flat.get("guard"))
    return key, flat.get(component) if dot else None


def in_words(flat: Flat) -> str:
    """``{"data": "digits", "partition.alpha": 0.1, "clients": 20}`` as ``digits, alpha=0.1, clients=20``."""
    return ", ".join(
        show(value) if key in COMPONENTS else f"{key.rpartition('.')[2]}={show(value)}" for key, value in flat.items()
    )
