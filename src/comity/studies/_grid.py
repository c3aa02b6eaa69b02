"""The grid of a study: expand entries from YAML, command line or Python to a list of configurations.

Entries are options of a run, including dotted ones (``rule.c``); ``method`` and ``rule`` may be lists. Further entries:
``seeds``, ``sweep`` (options with several values; all combinations), ``grid`` (a list of entries, each with its own
combinations), ``only`` (values of options to keep), ``tune``, ``tune_by``, ``tune_seeds``, ``budget``, ``jobs``,
``most_cells``, ``callbacks``, ``keep_checkpoints``, ``about``, and the sections ``quick``, ``desk``, ``night`` and
``paper``, one of which ``--scale`` chooses.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from comity._catalogue import find
from comity._components import Component
from comity._datasets import DataFiles
from comity._errors import ComityError, unknown
from comity._labels import slug, spelling, titled
from comity._options import Count, convert
from comity._options import options as declared
from comity._overlay import DEFAULTS, as_entry, owner
from comity.compare import Varying, compared, in_words
from comity.config import COMPONENTS, LOCAL, SEARCHED, UNNAMED, Config, Entries, Overlay, Training, default
from comity.results import Flat, flatten, show

SCALES = ("quick", "desk", "night", "paper")
BESIDE = (
    *("seeds", "sweep", "grid", "only", "tune", "tune_by", "tune_seeds", "budget"),
    *("jobs", "most_cells", "callbacks", "keep_checkpoints", "about"),
)
"""Entries of a study that are not options of a run."""

MOST_CELLS = 10_000  # default of `most_cells`: a slip in a sweep is reported at once

TRAINING = tuple(declared(Training))  # options of local training; if one is tuned, Local is tuned too


def examples() -> dict[str, Path]:
    """The studies that come with comity, by name: the papers' experiments at three scales."""
    return {file.stem: file for file in sorted((Path(str(files("comity"))) / "examples").glob("*.yaml"))}


def override(entries: Mapping[str, Any], options: Mapping[str, Any]) -> Entries:
    """Override ``entries`` by ``options``; sweeps, grids and listed methods lose their own values of these options.

    If another data set is named, pixels keep the range of the entries (``data.centred``). One data set for blocks with
    different ones is rejected: their networks and partitions would not fit it.
    """

    def without_rules(method: Any) -> Any:
        """A listed method without its own rules or guards, if those of all are given."""
        named = {"rule", "guard"} & options.keys()
        return (
            {key: value for key, value in method.items() if key not in named} if isinstance(method, Mapping) else method
        )

    def without_options(some: Mapping[str, Any]) -> Entries:
        kept = {key: value for key, value in some.items() if not {key, owner(key)} & options.keys()}
        if isinstance(kept.get("method"), list):
            kept["method"] = [without_rules(each) for each in kept["method"]]
        return kept | ({"sweep": without_options(section(kept, "sweep"))} if "sweep" in kept else {})

    below = dict(entries)
    if "data" in options and len(blocks := _block_data(entries)) > 1:
        raise ComityError(
            f"data cannot replace the data sets of all blocks of this study ({', '.join(blocks)}); "
            "to run some of the blocks use --only data=NAME"
        )
    if "sweep" in entries:
        below["sweep"] = without_options(section(entries, "sweep"))
    if "grid" in entries:
        below["grid"] = [without_options(entry) for entry in _grids(entries)]
    if isinstance(entries.get("method"), list):
        below["method"] = [without_rules(each) for each in entries["method"]]
    pixels = {key: value for key, value in Overlay(entries).items() if key == "data.centred"}
    return Overlay(below, options) | {key: value for key, value in pixels.items() if key not in Overlay(options)}


def _block_data(entries: Mapping[str, Any]) -> list[str]:
    """The data sets of the blocks of ``grid``, if several blocks have their own."""
    swept = [
        section(block, "sweep").get("data", [block["data"]] if "data" in block else []) for block in _grids(entries)
    ]
    named = [values for values in swept if isinstance(values, list) and values]
    names = dict.fromkeys(str(as_entry(each)["name"]) for values in named for each in values)
    return list(names) if len(named) > 1 else []


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> Entries:
    """Overlay ``above`` on ``below``; options of a component that ``below`` does not name apply to any named later."""
    dotted = Overlay(below)
    unnamed = {key: value for key, value in dotted.items() if "." in key and owner(key) not in dotted}
    return unnamed | Overlay(below, above)


def at_scale(entries: Mapping[str, Any], scale: str | None) -> Entries:
    """The entries, overridden by those of one scale."""
    sections = {name: section(entries, name) for name in SCALES if name in entries}
    if scale is not None and scale not in sections:
        raise unknown("scale", scale, sections) if sections else ComityError(f"scale {scale}: this study has no scales")
    base = {key: value for key, value in entries.items() if key not in SCALES}
    return layered(base, sections.get(scale or "desk", {}))


def seeds_of(entries: Mapping[str, Any]) -> list[int]:
    """``3`` means the seeds 0, 1 and 2; ``0,4,7`` and ``[0, 4, 7]`` list them."""
    given = entries.get("seeds")
    if given is None:
        return [convert(entries.get("seed", default("seed")), int, "seed")]
    listed = isinstance(given, (list, tuple)) or (isinstance(given, str) and "," in given)
    seeds: Sequence[int] = ()
    with suppress(ComityError):
        seeds = convert(given, list[int], "seeds") if listed else range(convert(given, int, "seeds"))
    _check_count(len(seeds), entries)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ComityError(f"seeds must be a number of seeds (3) or different seeds (0,4,7), got {given!r}")
    return list(seeds)


def callback_names(entries: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted names of callback classes, which must exist: runs may be in other processes."""
    from comity.engine import callback_class

    given = entries.get("callbacks") or ()
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ComityError(f"callbacks must be dotted names of classes, got {given!r}")
    for name in names:
        callback_class(name)
    return tuple(names)


def section(entries: Mapping[str, Any], name: str) -> Entries:
    """A mapping in a study's file: ``sweep``, ``tune``, or a scale."""
    found = entries.get(name) or {}
    if not isinstance(found, Mapping):
        raise ComityError(f"{name} must hold `option: value` lines, got {found!r}")
    return dict(found)


def _grids(entries: Mapping[str, Any]) -> list[Entries]:
    grids = entries.get("grid") or [{}]
    if not isinstance(grids, list) or not all(isinstance(grid, Mapping) for grid in grids):
        raise ComityError(f"grid must be a list of entries with `option: value` lines, got {grids!r}")
    return grids


def expand(entries: Mapping[str, Any]) -> list[Config]:
    """Every configuration of the grid once: settings outermost, then methods, rules and seeds."""
    seeds, tuned = seeds_of(entries), bool(entries.get("tune"))
    given = {key: value for key, value in entries.items() if key not in BESIDE and key != "seed"}
    base = {"save_models": False} | given
    cells: dict[str, Config] = {}
    known: dict[str, set[str]] = {}
    for grid in _grids(entries):
        sweep = section(grid, "sweep") or section(entries, "sweep")
        conditions = layered(base, {key: value for key, value in grid.items() if key != "sweep"})
        for key, values in sweep.items():
            if key == "seed" or (key in declared(Config) and not declared(Config)[key].decides):
                reason = "use seeds" if key == "seed" else "it makes no other numbers"
                raise ComityError(f"sweep {key}: cannot be swept; {reason}")
            if not isinstance(values, (list, tuple)) or not values:
                raise ComityError(f"sweep {key} must be a list of values, got {values!r}")
        count = math.prod(map(len, sweep.values()))
        if not sweep.keys() & {"method", "rule"}:
            count *= sum(1 for _ in _configurations(conditions))
        _check_count(count * len(seeds), entries)
        for values in product(*sweep.values()):
            swept = dict(zip(sweep, values, strict=True))
            with_options = {key: value for key, value in swept.items() if isinstance(value, Mapping)}
            setting = Overlay(conditions, with_options) | swept
            for chosen, seed in product(_configurations(setting), seeds):
                guarded = tuned and chosen["guard"] not in (None, "none")
                split = {"guard_split": True} if guarded else {}  # the guard's samples must not choose options
                config = _config(setting | chosen | {"seed": seed} | split, known)
                if tuned and not config.val_share and not (config.is_local and config.local_on == "all"):
                    config = config.with_(val_share=SEARCHED)
                cells.setdefault(config.key, config)
                _check_count(len(cells), entries)
    for key, options in sorted(known.items()):
        kind, _, option = key.partition(".")
        if option not in options:
            raise unknown("option", option, options, of=f"of a {kind}")
    return select(list(cells.values()), section(entries, "only"))


def select(cells: list[Config], only: Mapping[str, Any]) -> list[Config]:
    """The cells with one of the values that ``only`` gives for its options: ``{"data": "mnist,cifar10"}``."""
    for key, given in only.items():
        texts = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [given]
        there = [Overlay(cell.plain()).get(key) for cell in cells]
        kept = [cell for cell, value in zip(cells, there, strict=True) if any(is_value(value, text) for text in texts)]
        if not kept:
            known = ", ".join(dict.fromkeys(show(value, key) for value in there if value is not None))
            raise ComityError(
                f"only {key}={','.join(map(str, texts))} selects no run; "
                + (f"the runs have {key} {known}" if known else f"no run has the option {key}")
            )
        cells = kept
    return cells


def is_value(value: Any, text: Any) -> bool:
    """Whether an option's value equals the typed one: ``0.10`` is 0.1, and ``Fashion_MNIST`` is fashion-mnist."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(ValueError, TypeError):
            return float(text) == value
    return spelling(show(value)) == spelling(str(text))


def _check_count(cells: int, entries: Mapping[str, Any]) -> None:
    """Reject more cells than allowed."""
    most = convert(entries.get("most_cells") or MOST_CELLS, Count, "most_cells")
    if cells > most:
        limit = f"at most {most}, unless most_cells (--most-cells) is larger"
        raise ComityError(f"the study would have {cells} runs; {limit}")


def local_of(config: Config) -> Config:
    """The local baseline under the same conditions: in a study a run like the others, which saves what they save."""
    return config.local_baseline().with_(save_models=config.save_models, track=config.track)


def repeated_of(config: Config) -> Config:
    """The same local baseline with another training seed, to measure training luck."""
    return config.local_baseline(repeat=True).with_(reference="auto" if config.reference == "auto" else "none")


def apart_from_seeds(config: Config) -> Config:
    """A configuration without seeds, equal for all seeds and for repeated local training."""
    return config.with_(seed=0, training_seed=None if config.is_local else config.training_seed)


def has_own_rule(config: Config) -> bool:
    """Whether no rule can be chosen: for Local, and for methods with their own rule."""
    return config.is_local or config.method.trait("brings_rule", False)


def part(cells: Sequence[Config], shard: str) -> list[Config]:
    """The cells of one shard, such as ``3/16``; they depend only on the study, not on finished runs.

    Cells that are compared with the same Local stay together, if there are at least as many such families as shards.
    """
    which, slash, count = shard.partition("/")
    if not (slash and which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count)):
        raise ComityError(f"shard must be like 3/16, the third of 16 parts, got {shard!r}")
    families: dict[str, list[Config]] = {}
    for cell in cells:
        families.setdefault(local_of(cell).key if cell.reference == "auto" else cell.key, []).append(cell)
    pieces = list(families.values())
    if len(pieces) < int(count):
        pieces = [[cell] for family in pieces for cell in family]
    first, last = (len(pieces) * edge // int(count) for edge in (int(which) - 1, int(which)))
    return [cell for piece in pieces[first:last] for cell in piece]


def locals_of(cells: Iterable[Config]) -> list[Config]:
    """The local baselines of these cells, and the repeated ones, each once."""
    found: dict[str, Config] = {}
    for cell in cells:
        if cell.reference == "auto":
            baselines = [local_of(cell), *([repeated_of(cell)] if cell.control == "auto" else [])]
            found |= {each.key: each for each in baselines if each.key not in found}
    return list(found.values())


class Names:
    """Titles and folder names, made only of the options that vary."""

    def __init__(self, cells: Iterable[Config], tuned: Iterable[str] = ()) -> None:
        self.tuned = set(tuned)
        self.varying = Varying(self._flat(config) for config in cells)

    def _flat(self, config: Config) -> Flat:
        flat = flatten(config.plain(), own_rule=has_own_rule(config))
        return {key: value for key, value in flat.items() if key not in self.tuned}

    def title(self, config: Config) -> str:
        flat = self._flat(config)
        names = [self.varying.label(flat, kind) for kind in ("method", "rule") if kind in flat]
        names = [f"{LOCAL} repeated"] if config.repeats_local else names
        setting = in_words(self.varying.of(flat))
        return ", ".join([titled(*names), *([setting] if setting else []), f"seed {config.seed}"])

    def slug(self, config: Config, *more: str) -> str:
        flat = self._flat(config)
        words = [str(flat[kind]) for kind in ("method", "rule") if kind in flat]
        words += ["repeated"] if config.repeats_local else []
        words += [str(config.guard)] if config.guard is not None else []
        varying = self.varying.of(flat, *sorted(compared(flat))) | self.varying.of(flat)
        for key, value in varying.items():
            if key == "guard":
                continue
            text = "-".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            words.append(text if key in COMPONENTS else key.split(".")[-1] + text)
        return "-".join(slug(word) for word in (*words, *more, f"s{config.seed}") if word)


def _configurations(entries: Entries) -> Iterator[Entries]:
    """Every method with every rule and guard, or with those in its entry: ``{name: FedAvg, rule: Mean}``."""
    for method in _listed("method", entries.get("method")):
        own = dict(method) if isinstance(method, Mapping) else {"name": method}
        rules, guards = (own.pop(kind, entries.get(kind)) for kind in ("rule", "guard"))
        for rule, guard in product(_listed("rule", rules), _listed("guard", guards)):
            yield {"method": own, "rule": rule, "guard": guard}


def _listed(kind: str, value: Any) -> list[Any]:
    """``"FedRep,APFL"``, one entry, or a list of names and mappings; unknown names are rejected at once."""
    value = value if value is not None else default(kind) or "none"
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not names or "" in names:
        raise ComityError(f"{kind} must name at least one, separated by commas, got {value!r}")
    listed = [name.strip() if isinstance(name, str) else name for name in names]
    for name in listed:
        if isinstance(name, str) and not (kind in UNNAMED and name == "none"):
            find(kind, name)
    return listed


def _config(entries: Entries, known: dict[str, set[str]]) -> Config:
    """Dotted options apply to a component only if it has them; ``known`` collects the options of all components."""
    kept: Entries = {}
    for key, value in entries.items():
        kind, dot, option = key.partition(".")
        if dot and kind in COMPONENTS:
            options = Component.parse(kind, entries.get(kind) or DEFAULTS[kind]).options
            known.setdefault(key, set()).update(options, declared(DataFiles) if kind == "data" else ())
            if option not in options:
                continue
        kept[key] = value
    if Component.parse("method", kept["method"]).name == LOCAL:
        kept = {key: value for key, value in kept.items() if owner(key) not in ("guard", "guard_split", "refit")}
    config = Config.of(kept)
    if config.is_local:
        return local_of(config)  # so that it is the Local that others are compared with
    return config.with_(rule=default("rule")) if has_own_rule(config) else config
