"""What a study consists of: entries from YAML, the command line or Python become a list of configurations.

Entries are the options of a run, dotted ones too (``rule.c``), and ``method`` and ``rule`` may be lists. Beside them:
``seeds``, ``sweep`` (options with several values; a product), ``grid`` (a list of entries, each a product of its own),
``tune``, ``budget``, ``jobs``, ``callbacks``, ``about``, and the sections ``desk`` and ``paper``, of which ``--scale``
chooses one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from typing import Any

from comity._components import SUPPLIED, Component, convert, find, options
from comity._components import _data as find_data
from comity._errors import ComityError, unknown
from comity.config import COMPONENTS, Config, default
from comity.tables import Flat, Varying, flatten, told

Entries = dict[str, Any]

SCALES = ("desk", "paper")
BESIDE = ("seeds", "sweep", "grid", "tune", "budget", "jobs", "callbacks", "about")
"""Entries of a study that are no options of a run."""

VALIDATION = 0.2
"""Share of the training samples that a search keeps for validation where the study names none."""


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Entries:
    """``upper`` over ``lower``; options of a component that ``upper`` replaces go with it."""
    kept = {key: value for key, value in lower.items() if key.partition(".")[0] not in upper or "." not in key}
    return kept | dict(upper)


def override(entries: Mapping[str, Any], options: Mapping[str, Any]) -> Entries:
    """``options`` over ``entries``, and over what sweeps, grids and methods in there say of the same options."""

    def others(some: Mapping[str, Any]) -> Entries:
        kept = {
            key: value for key, value in some.items() if key not in options and key.partition(".")[0] not in options
        }
        return kept | ({"sweep": others(section(kept, "sweep"))} if "sweep" in kept else {})

    under = dict(entries)
    if "sweep" in entries:
        under["sweep"] = others(section(entries, "sweep"))
    if "grid" in entries:
        under["grid"] = [others(part) for part in _parts(entries)]
    if "rule" in options and isinstance(entries.get("method"), list):
        under["method"] = [others(method) if isinstance(method, Mapping) else method for method in entries["method"]]
    return merge(under, options)


def at_scale(entries: Mapping[str, Any], scale: str | None) -> Entries:
    """The entries with those of one scale over them."""
    sections = {name: section(entries, name) for name in SCALES if name in entries}
    if scale is not None and scale not in sections:
        raise unknown("scale", scale, sections) if sections else ComityError(f"scale {scale}: this study has no scales")
    base = {key: value for key, value in entries.items() if key not in SCALES}
    return merge(base, sections.get(scale or "desk", {}))


def seeds_of(entries: Mapping[str, Any]) -> list[int]:
    """``3`` are the seeds 0, 1 and 2; ``0,4,7`` and ``[0, 4, 7]`` are themselves."""
    given = entries.get("seeds")
    if given is None:
        return [convert(entries.get("seed", default("seed")), int, "seed")]
    several = given.split(",") if isinstance(given, str) and "," in given else given
    try:
        if isinstance(several, (list, tuple)):
            seeds = [convert(item, int, "seeds") for item in several if item != ""]
        else:
            seeds = list(range(convert(given, int, "seeds")))
    except ComityError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise ComityError(f"seeds must be a number of seeds (3) or different seeds (0,4,7), got {given!r}")
    return seeds


def callback_names(entries: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted names of callback classes, each of which must be there: runs may be done in other processes."""
    from comity.engine import callback_class

    given = entries.get("callbacks") or ()
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ComityError(f"callbacks must be dotted names of classes, got {given!r}")
    for name in names:
        callback_class(name)
    return tuple(names)


def section(entries: Mapping[str, Any], name: str) -> Entries:
    """A mapping in a study's file: ``sweep``, ``tune``, ``desk`` or ``paper``."""
    found = entries.get(name) or {}
    if not isinstance(found, Mapping):
        raise ComityError(f"{name} must hold `option: value` lines, got {found!r}")
    return dict(found)


def _parts(entries: Mapping[str, Any]) -> list[Entries]:
    parts = entries.get("grid") or [{}]
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise ComityError(f"grid must be a list of entries with `option: value` lines, got {parts!r}")
    return parts


def expand(entries: Mapping[str, Any]) -> list[Config]:
    """Every cell of the grid once: settings outermost, then methods, rules and seeds."""
    seeds, tuned = seeds_of(entries), bool(entries.get("tune"))
    base = {key: value for key, value in entries.items() if key not in BESIDE and key != "seed"}
    cells: dict[str, Config] = {}
    used: set[str] = set()
    asked: set[str] = set()
    for part in _parts(entries):
        sweep = section(part, "sweep") or section(entries, "sweep")
        over = merge(base, {key: value for key, value in part.items() if key != "sweep"})
        for key, values in sweep.items():
            _check_sweep(key, values)
        for values in product(*sweep.values()):
            swept = dict(zip(sweep, values, strict=True))
            setting = merge(over, {key: value for key, value in swept.items() if isinstance(value, Mapping)}) | swept
            asked |= {key for key in setting if "." in key}
            for (method, rule), seed in product(_pairs(setting), seeds):
                config = _config(setting | {"method": method, "rule": rule, "seed": seed}, used)
                if tuned and not config.val_share:
                    config = config.with_(val_share=VALIDATION)
                cells.setdefault(config.key, config)
    for key in sorted(asked - used):
        kind, _, option = key.partition(".")
        have = {name for config in cells.values() for name in _options(kind, str(getattr(config, kind) or "dirichlet"))}
        if option not in have:
            raise unknown(f"option of {kind}", option, have)
    return list(cells.values())


def local_of(config: Config) -> Config:
    """Local under the same conditions. In a study it is a run like the others, and saves what they save."""
    return config.alone().with_(save_models=config.save_models, tensorboard=config.tensorboard)


def alone(config: Config) -> bool:
    """Whether no rule can be chosen: for Local, and for methods that bring their own."""
    return config.is_local or config.method.build().own_rule() is not None


def put(config: Config, key: str, value: Any) -> Config:
    """The configuration with another value for ``rule.c``."""
    kind, _, option = key.partition(".")
    return config.with_(**{kind: getattr(config, kind).plain() | {option: value}})


def has(config: Config, key: str) -> bool:
    """Whether the configuration's method or rule has the option ``rule.c``, and it matters."""
    kind, _, option = key.partition(".")
    return option in getattr(config, kind).options and not (kind == "rule" and alone(config))


class Names:
    """Names for people and folders, made of what varies and nothing else."""

    def __init__(self, cells: Iterable[Config], tuned: Iterable[str] = ()) -> None:
        self.tuned = set(tuned)
        self.varying = Varying(self._flat(config) for config in cells)

    def _flat(self, config: Config) -> Flat:
        flat = flatten(config.plain())
        silent = self.tuned | ({key for key in flat if key.startswith("rule.")} if alone(config) else set())
        return {key: value for key, value in flat.items() if key not in silent}

    def title(self, config: Config) -> str:
        flat = self._flat(config)
        parts = [
            f"{flat[kind]} ({told(mine)})" if (mine := self.varying.of(flat, kind)) else str(flat[kind])
            for kind in (("method",) if alone(config) else ("method", "rule"))
        ]
        setting = told(self.varying.of(flat))
        return ", ".join([" + ".join(parts), *([setting] if setting else []), f"seed {config.seed}"])

    def slug(self, config: Config, *more: str) -> str:
        flat = self._flat(config)
        parts = [str(flat["method"])] + ([] if alone(config) else [str(flat["rule"])])
        for key, value in (self.varying.of(flat, "method", "rule") | self.varying.of(flat)).items():
            text = "-".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            parts.append(text if key in COMPONENTS else key.split(".")[-1] + text)
        return "-".join(_slug(part) for part in (*parts, *more, f"s{config.seed}") if part)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _pairs(entries: Entries) -> Iterator[tuple[Any, Any]]:
    """Every method with every rule, or with those that its own entry names: ``{name: FedAvg, rule: FedMGDA+}``."""
    for method in _listed("method", entries.get("method")):
        own = dict(method) if isinstance(method, Mapping) else {"name": method}
        rules = own.pop("rule", entries.get("rule"))
        yield from ((own, rule) for rule in _listed("rule", rules))


def _listed(kind: str, value: Any) -> list[Any]:
    """``"FedRep,APFL"``, one entry, or a list of names and mappings."""
    value = default(kind) if value is None else value
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not names or "" in names:
        raise ComityError(f"{kind} must name at least one, separated by commas, got {value!r}")
    return [name.strip() if isinstance(name, str) else name for name in names]


def _check_sweep(key: str, values: Any) -> None:
    known = {f.name: f for f in fields(Config)}
    if key in ("seed", "out", "reference") or (key in known and not known[key].metadata["decides"]):
        told_ = "use seeds" if key == "seed" else "it makes no other numbers"
        raise ComityError(f"sweep {key}: cannot be swept; {told_}")
    if not isinstance(values, (list, tuple)) or not values:
        raise ComityError(f"sweep {key} must be a list of values, got {values!r}")


def _options(kind: str, name: str) -> Iterable[str]:
    _, component = find_data(name) if kind == "data" else find(kind, name)
    return options(component, SUPPLIED.get(kind, ()))


def _config(entries: Entries, used: set[str]) -> Config:
    """Dotted options go to the components that know them; ``used`` remembers which found one."""
    plain = {key: value for key, value in entries.items() if "." not in key}
    for key, value in entries.items():
        kind, dot, option = key.partition(".")
        if not dot:
            continue
        if kind not in COMPONENTS:
            raise ComityError(f"{kind} has no options of its own, got {key}")
        chosen = plain.get(kind) or default(kind) or "dirichlet"
        component = Component.parse(kind, chosen).plain()
        if option in _options(kind, component["name"]):
            plain[kind] = component | {option: value}
            used.add(key)
    config = Config.of(plain)
    if config.is_local:
        config = config.with_(moment=config.alone().moment)  # so that it is the Local that others are compared with
    return config.with_(rule=default("rule")) if alone(config) else config
