"""A benchmark: the same configurations on several federations, one ordinary study per federation.

Learning rates come first: each configuration, and local training, is tried at the same rates, by validation on the
first fold. A guarded configuration takes the rate of the same configuration without its guard. Then the studies grow
together, one repetition after the other, so that a benchmark that is stopped is a smaller benchmark.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from comity._components import Component
from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._federations import natural
from comity._labels import slug
from comity._overlay import as_entry
from comity._words import counted
from comity._write import write_text
from comity.compare import LoadedStudy
from comity.config import LOCAL, Config, Entries, read_yaml
from comity.results import StudyFolder
from comity.studies._grid import at_scale, expand, has_own_rule, override, section, seeds_of
from comity.studies._show import Show
from comity.studies._study import study

BENCHMARK = Path(str(files("comity"))) / "benchmark.yaml"
"""The configurations and conditions of ``comity bench``."""
LEADERBOARD = BENCHMARK.with_name("leaderboard.csv")
"""The results of the committed leaderboard."""
FOLDS = 3
"""Seeds of one repetition: together they test each sample once."""
RATES = ".rates"
"""In a federation's folder: the study that chooses learning rates."""
KNOWN = ".rates.json"
COMPARED = ("method", "rule", "guard")
BESIDE_RATES = ("grid", "sweep", "jobs", "about", "workers", "data_dir", "keep_checkpoints", "callbacks", "most_cells")
"""Entries that decide no learning rate."""


@dataclass
class Bench:
    """Result of a benchmark: the study folder of each federation, and reasons for what could not be run."""

    studies: dict[str, Path] = field(default_factory=dict)
    left_out: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By federation: configurations that do not run there, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Federations that could not be run, and runs that failed, each with its error."""


def bench(
    config: str | Path | Mapping[str, Any] = BENCHMARK,
    *,
    federations: Mapping[str, Mapping[str, Any]],
    out: str | Path,
    scale: str | None = None,
    only: Sequence[Mapping[str, Any]] = (),
    more: Sequence[Mapping[str, Any]] = (),
    allow_code: bool = False,
    overwrite: bool = False,
    show: Show | None = None,
    stop: Callable[[], bool] = lambda: False,
    shard: str | None = None,
    after: Callable[[Bench], object] = lambda _: None,
    **options: Any,
) -> Bench:
    """Run the unfinished part of every federation's study; the same call resumes a stopped benchmark.

    ``federations``: the entries of each, such as ``{"pisa": {"data": "pisa", "metric": "accuracy"}}``. ``only``:
    configurations in place of those of the file, each with ``method`` and perhaps ``rule`` and ``guard``; ``more``:
    beside those. ``shard``: ``3/4`` does the third part of the federations. ``after`` is called when a
    repetition is complete.
    """
    entries = read_yaml(Path(config), allow_code=allow_code) if isinstance(config, (str, Path)) else dict(config)
    entries = override(at_scale(entries, scale), options)
    if "lr" in options:
        entries.pop("tune", None)
    if more:
        entries = entries | {"grid": [*(entries.get("grid") or [{}]), *more]}
    if only:
        entries = {key: value for key, value in entries.items() if key not in COMPARED} | {"grid": list(only)}
    seeds = seeds_of(entries)
    done = Bench()
    show = show or Show()
    common: dict[str, Any] = {"show": show, "stop": stop, "overwrite": overwrite}
    parts = [_Part(name, own, entries, Path(out)) for name, own in _shard(federations, shard).items()]
    for count in [*range(FOLDS, len(seeds), FOLDS), len(seeds)]:
        for part in parts:
            if stop():
                return done
            if part.name in done.failed:
                continue
            show.say(f"\n{part.name}, {counted(count, 'seed')} of {len(seeds)}")
            try:
                part.run(seeds[:count], done, common)
            except ComityError as error:
                done.failed[part.name] = str(error)
                show.say(f"{part.name} is left out: {error}")
        if done.studies and not stop():
            after(done)
    return done


def _shard(federations: Mapping[str, Mapping[str, Any]], shard: str | None) -> dict[str, Mapping[str, Any]]:
    """The federations of one shard, every n-th."""
    if not federations:
        raise ComityError("a benchmark needs at least one federation")
    if shard is None:
        return dict(federations)
    which, slash, count = shard.partition("/")
    if not (slash and which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count)):
        raise ComityError(f"shard must be like 2/4, the second of four parts, got {shard!r}")
    return {name: federations[name] for name in list(federations)[int(which) - 1 :: int(count)]}


@dataclass(frozen=True)
class Chosen:
    """The learning rate of each configuration without its guard, and why others cannot run."""

    rates: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    conditions: Entries = field(default_factory=dict)
    """What they were chosen under; under others they are chosen again."""


class _Part:
    """The study of one federation."""

    def __init__(self, name: str, own: Mapping[str, Any], entries: Entries, out: Path) -> None:
        self.name, self.out = name, out / slug(name)
        data = Component.parse("data", own["data"])
        unknown = [key for key in entries if key.startswith("data.") and key[5:] not in data.options]
        kept = {key: value for key, value in entries.items() if key not in (*unknown, "federations", "seeds", "out")}
        self.entries = {**own, **kept}
        self.first = seeds_of(entries)[0]
        self.tuned = bool(section(entries, "tune"))
        cells = expand(_without(self.entries, "tune", "tune_by", "tune_seeds") | {"seeds": [self.first], "out": None})
        self.cells = [cell for cell in cells if not cell.is_local]

    def run(self, seeds: Sequence[int], done: Bench, common: Mapping[str, Any]) -> None:
        cells = self.cells
        chosen = self.choose(cells, common)
        titles = {_key(cell): cell.title(has_own_rule(cell)) for cell in cells}
        done.left_out[self.name] = [(titles[key], why) for key, why in chosen.left_out.items() if key in titles]
        if common["stop"]():
            return
        grid = [
            {kind: _entry(cell, kind) for kind in COMPARED} | ({"lr": chosen.rates[_key(cell)]} if self.tuned else {})
            for cell in cells
            if _key(cell) not in chosen.left_out
        ]
        if not grid:
            raise ComityError(f"no configuration runs: {next(iter(chosen.left_out.values()))}")
        local = {"local_lr": chosen.rates[LOCAL]} if self.tuned else {}
        entries = (
            _without(self.entries, *COMPARED, "tune", "tune_by", "tune_seeds", "grid", "sweep") | {"grid": grid} | local
        )
        folder = StudyFolder(self.out)
        if self.tuned:
            folder.write_entries(entries | {"out": str(self.out), "seeds": list(seeds)})
            folder.write_tuning(LoadedStudy(self.out / RATES).tuning)
        finished = study(entries, out=self.out, seeds=list(seeds), **common)
        done.studies[self.name] = self.out
        done.failed |= {f"{self.name}: {title}": error for title, error in finished.failed.items()}

    def choose(self, cells: Sequence[Config], common: Mapping[str, Any]) -> Chosen:
        """Choose rates: those of earlier calls; for new configurations by a search, or none after a trial round."""
        known, file = Chosen(), self.out / KNOWN
        conditions = json.loads(json.dumps(_without(self.entries, *COMPARED, *BESIDE_RATES), default=str))
        if file.is_file() and (found := Chosen(**json.loads(file.read_text()))).conditions == conditions:
            known = found
        new = {key: cell for cell in cells if (key := _key(cell)) not in known.rates | known.left_out}
        if not new:
            return known
        left_out = known.left_out | _failing(new)
        every = {key: cell for cell in cells if (key := _key(cell)) not in left_out}
        rates = dict(known.rates)
        if self.tuned and every:
            grid = [{kind: _entry(cell, kind) for kind in ("method", "rule")} for cell in every.values()]
            entries = _without(self.entries, *COMPARED, "sweep", "refit") | {"grid": grid}
            done = study(entries, out=self.out / RATES, seeds=[self.first], **common)
            if common["stop"]():
                return known
            rates |= {_key(run.options): float(run.options["lr"]) for run in done.runs if run.finished}
            left_out |= {key: "it fails at every learning rate" for key in every if key not in rates}
        elif not self.tuned:
            rates |= dict.fromkeys(every, 0.0)
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = Chosen(rates, left_out, conditions)
        write_text(file, json.dumps(vars(chosen), indent=2) + "\n")
        return chosen


def _failing(cells: Mapping[str, Config]) -> dict[str, str]:
    """The configurations whose first round fails, for example because the data do not suit them, and the error."""
    from comity.studies._crew import reason
    from comity.studies._runs import Runs

    runs, errors = Runs(), {}
    for key, cell in cells.items():
        try:
            runs.time_one_round(cell.with_(guard=None, workers=1))
        except Exception as error:  # whatever it is, the other configurations continue
            errors[key] = reason(error)
    if len(errors) == len(cells) and errors:
        raise ComityError(next(iter(errors.values())))
    return errors


def _key(cell: Config | Mapping[str, Any]) -> str:
    """Key that a configuration shares with its run, with or without a guard."""
    plain = cell.plain() if isinstance(cell, Config) else cell
    method, rule = (as_entry(plain[kind]) for kind in ("method", "rule"))
    return LOCAL if method["name"] == LOCAL else json.dumps([method, rule], sort_keys=True)


def _entry(cell: Config, kind: str) -> Any:
    return cell.plain()[kind]


def _without(entries: Mapping[str, Any], *names: str) -> Entries:
    return {key: value for key, value in entries.items() if key.partition(".")[0] not in names}


def federations(names: Iterable[str] = (), data_dir: str | Path | None = None) -> dict[str, Entries]:
    """Natural federations by name with their entries (default: all whose data are found); also paths of tables."""
    known = natural()
    chosen = list(names) or ["heart", *(name for name, each in known.items() if each.path(data_dir))]
    found: dict[str, Entries] = {}
    for name in chosen:
        whereabouts(name, data_dir)  # a missing one is reported before anything runs
        found[Path(name).name.partition(".")[0]] = {"data": name} | (
            {"data_dir": str(data_dir)} if data_dir is not None else {}
        )
    return found
