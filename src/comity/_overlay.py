"""Merge options of a run from files, command line and Python, nested or dotted; later layers override earlier ones."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from comity._catalogue import KINDS, Description, described, find
from comity._components import Component
from comity._errors import ComityError
from comity._hints import option_hint
from comity._labels import spelling

Entries = dict[str, Any]
"""Options by name. A component's options are nested, ``{"rule": {"name": "ConFREE", "c": 0.4}}``, or dotted, ``{"rule":
"ConFREE", "rule.c": 0.4}``."""

DEFAULTS = {
    "data": "digits",
    "partition": "dirichlet",
    "model": "cnn",
    "method": "FedAvg",
    "rule": "Mean",
    "guard": "certified",
    "extension": "",
}
"""The component that options without a name refer to; comity has no extension of its own."""


def owner(key: str) -> str:
    """The component of an option, or the option itself: ``rule`` for ``rule.c`` and ``rule``."""
    return key.partition(".")[0]


def as_entry(chosen: Any) -> Entries:
    """A component as a mapping: ``"Ditto"`` as ``{"name": "Ditto"}``."""
    if isinstance(chosen, Component):
        return {"name": chosen.name if chosen.given is None else chosen.given, **chosen.options}
    return dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}


def components(entries: Entries, kinds: Iterable[str] = KINDS) -> Iterator[tuple[str, Description]]:
    """The components chosen in ``entries``, or the defaults, with their kinds."""
    for kind in kinds:
        chosen = entries.get(kind) or DEFAULTS[kind]
        names = chosen.split(",") if isinstance(chosen, str) else chosen if isinstance(chosen, list) else [chosen]
        yield from ((kind, find(kind, as_entry(name)["name"])) for name in names if name not in ("", "none"))


def advice(name: str, known: Collection[str], entries: Entries) -> str:
    """A suggestion for an unknown option, or ``""``: by another framework's name for it, or by the component that has
    it, starting with those in ``entries``.

    ``known`` are the allowed options, spelt with dashes if ``name`` is.
    """
    typed = name.lstrip("-")
    hint = typed if f"--{typed}" in known else option_hint(typed)
    if " " in hint:
        return hint
    dashes, hyphen = ("--", "-") if name.startswith("-") else ("", "_")
    if hint and (ours := dashes + hint.replace("-", hyphen)) in known:
        return f"did you mean {ours}?"
    kind, _, option = (hint or typed).rpartition(".")
    option = option.replace("-", "_")
    kinds = [each for each in KINDS if kind in ("", each) and dashes + each in known]
    found = [f"{dashes}{each}.{option}" for each, chosen in components(entries, kinds) if option in chosen.options]
    for each in kinds if not found else ():
        if owners := [one.name for one in described(each).values() if option in one.options]:
            found.append(f"{dashes}{each}.{option} ({', '.join(owners[:3])}{', …' * (len(owners) > 3)})")
    return f"did you mean {' or '.join(dict.fromkeys(found))}?" if found else ""


class Overlay(Entries):
    """Options with dotted names, merged from layers; each layer overrides the earlier ones.

    A layer that names another component discards the options of the earlier one.
    """

    def __init__(self, *layers: Mapping[str, Any]) -> None:
        super().__init__()
        for layer in layers:
            above = _dotted(layer)
            renamed = {kind for kind in KINDS if kind in above and not _same(self.get(kind), above[kind])}
            for key in [key for key in self if "." in key and owner(key) in renamed]:
                del self[key]
            self.update(above)

    def nested(self, before: Mapping[str, Any] | None = None) -> Entries:
        """Options nested under their component; without a name they belong to the one in ``before``, or the default."""
        result = {key: value for key, value in self.items() if "." not in key}
        for key, value in self.items():
            kind, dot, name = key.partition(".")
            if dot:
                if kind not in KINDS:
                    raise ComityError(f"{kind} has no options of its own, got {key}")
                chosen = result.get(kind) or (before or {}).get(kind) or DEFAULTS[kind]
                if not chosen:
                    raise ComityError(f"{key} is given without {kind}")
                result[kind] = as_entry(chosen) | {name: value}
        return result

    def without(self, names: Collection[str]) -> "Overlay":
        """All except these options and components, including the components' options."""
        kept = Overlay()
        kept.update({key: value for key, value in self.items() if key not in names and owner(key) not in names})
        return kept


def _dotted(entries: Mapping[str, Any]) -> Entries:
    result: Entries = {}
    for key, value in entries.items():
        entry = as_entry(value) if key in KINDS and isinstance(value, (Component, Mapping)) else {}
        if "name" in entry and not entry.keys() & KINDS.keys():  # a study's method may name its own rules
            inner = {key if name == "name" else f"{key}.{name}": each for name, each in entry.items()}
            result |= {name: each for name, each in inner.items() if name == key or name not in entries}
        else:
            result[key] = value
    return result


def _same(below: Any, above: Any) -> bool:
    """Whether both are the same component."""
    return isinstance(below, str) and isinstance(above, str) and spelling(below) == spelling(above)
