"""Prepare a study's runs: settle, check and time them. Each data set is read once for all runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from comity._errors import ComityError
from comity._threads import one_thread
from comity._words import counted
from comity.config import MLP, Config
from comity.engine import RunPlan, run
from comity.studies._cost import in_words, seconds, size_of
from comity.studies._crew import reason
from comity.studies._grid import apart_from_seeds, locals_of
from comity.studies._show import Show, duration

if TYPE_CHECKING:
    from comity.studies._plan import StudyPlan

OVERHEAD = 0.1
"""Seconds of a round below which most of it is overhead."""
QUICK_RUN = 1.0
"""A run shorter than this many seconds is timed by the fastest of three rounds, because the first one warms up."""


def _about(config: Config) -> str:
    """Key of the data set."""
    return repr((config.data, config.data_dir, config.data_limit))


class SharedPlan(RunPlan):
    """A run's plan that shares its data set with other runs."""

    def __init__(self, config: Config, datasets: dict[str, Any]) -> None:
        self.datasets = datasets
        super().__init__(config)

    @cached_property
    def dataset(self) -> Any:
        if (about := _about(self.config)) not in self.datasets:
            with one_thread():  # as in a run: the bits of a sum depend on how it is split
                self.datasets[about] = super().dataset
        return self.datasets[about]


class Runs:
    """The plans of a study's runs, which share data sets."""

    def __init__(self) -> None:
        self.datasets: dict[str, Any] = {}
        self._fingerprints: dict[str, str | None] = {}

    def plan(self, config: Config) -> RunPlan:
        return SharedPlan(config, self.datasets)

    def next_plan(self, config: Config) -> RunPlan:
        """The plan of the next run in sequence: only its own data set stays in memory."""
        if _about(config) not in self.datasets:
            self.datasets.clear()
        return self.plan(config)

    def settled(self, cells: Iterable[Config]) -> list[Config]:
        """The cells with default device, clients and model filled in.

        If one method needs an mlp for the data, all methods get it, so that they share local baselines.
        """
        cells = list(cells)
        found = [self.plan(cell).config for cell in cells]
        usual = [(repr((cell.data, cell.data_dir)), cell.model is None) for cell in cells]
        rich = {about for about, config in zip(usual, found, strict=True) if str(config.model) == MLP}
        return [
            config.with_(model=MLP) if unnamed and (data, unnamed) in rich else config
            for config, (data, unnamed) in zip(found, usual, strict=True)
        ]

    def fingerprint(self, config: Config) -> str | None:
        """Fingerprint of the current data; ``None`` for synthetic data."""
        about = repr((config.data, config.data_dir))
        if about not in self._fingerprints:
            self._fingerprints[about] = self.plan(config).fingerprint
        return self._fingerprints[about]

    def check(self, cells: Iterable[Config]) -> None:
        """Reject invalid runs before anything is written: data, partition, method and rule of each cell."""
        settings: dict[str, dict[str, Config]] = {}
        for cell in cells:  # other seeds would fail in the same way
            data = (cell.data, cell.data_dir, cell.partition, cell.clients, cell.newcomers)
            about = repr((*data, cell.test_share, cell.val_share))
            settings.setdefault(about, {}).setdefault(apart_from_seeds(cell).key, cell)
        for same in settings.values():
            federation = self.plan(next(iter(same.values()))).everyone
            for cell in same.values():
                RunPlan(cell, federation).site  # noqa: B018

    def time_one_round(self, config: Config) -> tuple[float, float, float]:
        """Seconds to train and aggregate a round, to evaluate it, and to do so with S-acc and G-acc; without guard.

        On the CPU, time in which other programs had the cores does not count: it is the processor time, or the time
        that passed by the clock if several threads used more.
        """
        quiet = {"track": (), "guard": None, "reference": "none", "control": "none", "out": None, "eval_every": 1}
        plan, marks = self.plan(config.with_(**quiet)), list[Clock]()

        def enough() -> bool:
            marks.append(_clock())
            return len(marks) > (1 if marks[-1].wall - marks[0].wall > QUICK_RUN else 3)

        done = run(plan=plan, stop=enough)
        on_cpu = plan.config.device == "cpu"  # on a GPU the process mostly waits for it
        shares = [after.share(before) if on_cpu else 1.0 for before, after in pairwise(marks)]
        timed = [(share, copy(record.seconds)) for share, record in zip(shares, done.records, strict=True)]
        share, seconds = min(timed, key=lambda each: each[0] * (each[1].train + each[1].aggregate))
        general = share * seconds.evaluate
        if any(config.general_in(round) for round in range(1, config.last_round + 1) if config.evaluates_in(round)):
            before = _clock()
            done.server.evaluate(general=True)
            general = done.server.record.seconds.evaluate * (_clock().share(before) if on_cpu else 1.0)
        return share * (seconds.train + seconds.aggregate), share * seconds.evaluate, general


class Clock(NamedTuple):
    """Time that passed by the clock, and the processor time of this process, in seconds."""

    wall: float
    cpu: float

    def share(self, before: "Clock") -> float:
        """The share of the time since ``before`` in which this process had a core."""
        return min(1.0, (self.cpu - before.cpu) / (self.wall - before.wall))


def _clock() -> Clock:
    return Clock(perf_counter(), process_time())


def estimate(plan: "StudyPlan", finished: Callable[[Config], bool], show: Show, *, quick: bool = False) -> float:
    """Report the number of runs and return the estimated seconds of all.

    ``quick``: by the stored cost model, refined by one round of the cheapest cell. Otherwise, or if the model does not
    know the data or the network, one round of each cell is timed.
    """
    every = [*locals_of(plan.asked), *plan.asked]
    runs = Counter({config.key: 1 for config in every if not finished(config)})
    for group in plan.groups:
        runs.update({cell.key: sum(search.most for search in group.searches) for cell in group.tried})
    configs = {config.key: config for config in every if runs[config.key]}
    show.say(
        f"{sum(runs.values())} runs to do{', at most' * any(group.searches for group in plan.groups)}; "
        f"{plan.most} in parallel, {counted(plan.workers, 'worker')} each."
    )
    modelled = _modelled(plan, configs, runs, show) if quick and configs else {}
    plan.runs.check(configs.values())
    if modelled:
        return _refined(plan, configs, runs, modelled, show)
    measured: dict[str, Sequence[float]] = {}
    total = 0.0
    for key, config in configs.items():
        similar = apart_from_seeds(config).key
        if similar not in measured:
            measured[similar] = _first_round(plan, config)
            title = plan.names.title(config).rpartition(", seed")[0]
            each = _whole(config, measured[similar]) / config.last_round
            show.say(f"  a round of {title}: {each:.2f} s, {config.last_round} rounds")
        total += runs[key] * _whole(config, measured[similar])
    show.say(f"Estimate for this machine: {duration(total / plan.most)}.")
    return total / plan.most


def _first_round(plan: "StudyPlan", config: Config) -> tuple[float, float, float]:
    try:
        return plan.runs.time_one_round(config.with_(workers=plan.workers))
    except Exception as error:
        title = plan.names.title(config).rpartition(", seed")[0]
        raise ComityError(f"{title} fails in its first round: {reason(error)}") from error


def _whole(config: Config, measured: Sequence[float]) -> float:
    """Seconds of a whole run, from those of one round."""
    training, evaluating, general = measured
    evaluated = [round for round in range(1, config.last_round + 1) if config.evaluates_in(round)]
    generals = sum(map(config.general_in, evaluated))
    return training * config.last_round + evaluating * (len(evaluated) - generals) + general * generals


def _modelled(plan: "StudyPlan", configs: Mapping[str, Config], runs: Counter[str], show: Show) -> dict[str, float]:
    """Seconds of each run by the stored cost model; empty if it does not know a data set or a network."""
    found: dict[str, float] = {}
    by_data: dict[str, float] = {}
    sizes: dict[str, Any] = {}
    for key, config in configs.items():
        if (about := repr((config.data, config.data_dir))) not in sizes:
            sizes[about] = size_of(plan.runs.plan(config).dataset)
            if sizes[about] and (less := in_words(config.data.name, sizes[about])):
                show.say(f"  {config.data}: {less}")
        try:
            found[key] = seconds(config, sizes[about])
        except Exception:  # a user's network that cannot be built without data, or data without a fixed size
            return {}
        by_data[str(config.data)] = by_data.get(str(config.data), 0.0) + runs[key] * found[key]
    listed = ", ".join(f"{data} {duration(each / plan.most)}" for data, each in by_data.items())
    total = sum(by_data.values()) / plan.most
    show.say(f"First estimate, from stored costs: {duration(total)}{f' ({listed})' if len(by_data) > 1 else ''}.")
    return found


def _refined(
    plan: "StudyPlan", configs: Mapping[str, Config], runs: Counter[str], modelled: Mapping[str, float], show: Show
) -> float:
    """Time one round of the cheapest run, and correct the model for all runs by the difference.

    A round below ``OVERHEAD`` seconds is mostly overhead, which every round has; a longer one measures the speed of
    this machine.
    """
    config = configs[min(modelled, key=lambda key: modelled[key])]
    measured = _first_round(plan, config)
    here, stored = _whole(config, measured), modelled[config.key]
    if sum(measured[:2]) < OVERHEAD:
        more = (here - stored) / config.last_round
        total = sum(runs[key] * max(modelled[key] + more * configs[key].last_round, 0) for key in configs)
    else:
        total = here / stored * sum(runs[key] * modelled[key] for key in configs)
    title = plan.names.title(config).rpartition(", seed")[0]
    taken = f"{here / config.last_round:.2f} s" + " of CPU time" * (config.device == "cpu")
    show.say(f"  measured: a round of the cheapest run, {title}, {taken}, {config.last_round} rounds")
    show.say(f"Estimate for this machine: {duration(total / plan.most)}.")
    return total / plan.most
