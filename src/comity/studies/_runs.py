"""A study's runs before they are done: settled, checked and timed. Each data set is read once for all of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError
from comity._threads import one_thread
from comity.config import MLP, Config
from comity.engine import RunPlan, run
from comity.studies._crew import reason
from comity.studies._grid import apart_from_seeds, locals_of
from comity.studies._show import Show, duration

if TYPE_CHECKING:
    from comity.studies._plan import StudyPlan


class SharedPlan(RunPlan):
    """A run's plan whose data set other runs have read, or will use."""

    def __init__(self, config: Config, datasets: dict[str, Any]) -> None:
        self.datasets = datasets
        super().__init__(config)

    @cached_property
    def dataset(self) -> Any:
        about = repr((self.config.data, self.config.data_dir, self.config.data_limit))
        if about not in self.datasets:
            with one_thread():  # as in a run: the bits of a sum depend on how it is split
                self.datasets[about] = super().dataset
        return self.datasets[about]


class Runs:
    """The plans of a study's runs, which share their data sets."""

    def __init__(self) -> None:
        self.datasets: dict[str, Any] = {}
        self._fingerprints: dict[str, str | None] = {}

    def plan(self, config: Config) -> RunPlan:
        return SharedPlan(config, self.datasets)

    def settled(self, cells: Iterable[Config]) -> list[Config]:
        """The cells with the device, clients and model that they get where none is named.

        Where one method needs an mlp for the data, all methods get it, so that they share their local baselines.
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
        """The fingerprint of the data as they are now; ``None`` for synthetic data."""
        about = repr((config.data, config.data_dir))
        if about not in self._fingerprints:
            self._fingerprints[about] = self.plan(config).fingerprint
        return self._fingerprints[about]

    def check(self, cells: Iterable[Config]) -> None:
        """Reject what cannot run, before anything is written: data, partition, method and rule of each cell."""
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
        """Seconds to train and aggregate a round, to evaluate it, and to do so with S-acc and G-acc; without guard."""
        quiet = {"track": (), "guard": None, "reference": "none", "control": "none", "out": None, "eval_every": 1}
        asked = count()
        done = run(plan=self.plan(config.with_(**quiet)), stop=lambda: next(asked) > 0)
        seconds = copy(done.records[0].seconds)
        done.server.evaluate(general=True)
        return seconds.train + seconds.aggregate, seconds.evaluate, done.server.record.seconds.evaluate


def estimate(plan: "StudyPlan", finished: Callable[[Config], bool], show: Show) -> float:
    """Try one round of each cell; report how many runs there are to do and about how many seconds they take."""
    every = [*locals_of(plan.asked), *plan.asked]
    runs = Counter({config.key: 1 for config in every if not finished(config)})
    for group in plan.groups:
        runs.update({cell.key: sum(search.most for search in group.searches) for cell in group.tried})
    configs = {config.key: config for config in every if runs[config.key]}
    plan.runs.check(configs.values())
    show.say(
        f"{sum(runs.values())} runs to do{', at most' * any(group.searches for group in plan.groups)}; "
        f"{plan.most} side by side, workers in each: {plan.workers}."
    )
    measured: dict[str, Sequence[float]] = {}
    total = 0.0
    for key, config in configs.items():
        similar, last = apart_from_seeds(config).key, config.last_round
        if similar not in measured:
            title = plan.names.title(config).rpartition(", seed")[0]
            try:
                measured[similar] = plan.runs.time_one_round(config.with_(workers=plan.workers))
            except Exception as error:
                raise ComityError(f"{title} fails in its first round: {reason(error)}") from error
            show.say(f"  a round of {title}: {sum(measured[similar][:2]):.2f} s, {last} rounds")
        training, evaluating, general = measured[similar]
        evaluated = [round for round in range(1, last + 1) if config.evaluates_in(round)]
        generals = sum(map(config.general_in, evaluated))
        total += runs[key] * (training * last + evaluating * (len(evaluated) - generals) + general * generals)
    show.say(f"About {duration(total / plan.most)} in all.")
    return total / plan.most
