"""The interface of everything that changes a run without being its method or its rule.

An extension lives in the room of its feature. The engine calls its hooks at the points below and knows nothing else of
it. One object serves one run: some hooks are called where clients work, others where the server works.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, dataclass_transform

from torch import Tensor

from comity._extensions import BY_DATA, BY_OPTION, BY_RULE, LAST
from comity._options import check
from comity.config import Config, default
from comity.data import ClientData, Federation
from comity.methods import Combined, Payload, Reply
from comity.metrics import Metric
from comity.rules import Rule, Updates

if TYPE_CHECKING:
    from comity.engine._aggregation import Aggregation
    from comity.engine._client import Client
    from comity.engine._evaluation import Judgement
    from comity.engine._plan import RunPlan
    from comity.engine._run import Run
    from comity.engine._server import Server
    from comity.engine._site import Site
    from comity.engine._verbs import Verb
    from comity.results import Result

MakeUpdates = Callable[..., Updates]
"""Makes the updates that a rule sees from rows, base, layout, sizes, losses and ids."""


@dataclass_transform(kw_only_default=True)
class Extension:
    """Changes a run without changing its method. Override the hooks you need.

    An annotated attribute of a subclass is an option, as in a method: ``strength: float = 1.0``.
    ``comity run --extension mymodule.MyExtension --extension.strength 0.5`` adds your own.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Further metrics of each client's model."""
    baselines: ClassVar[tuple[Literal["all", "train"], ...]] = ()
    """Further local baselines that it needs: ``train`` for one that has not seen the validation samples."""
    repeatable: ClassVar[bool] = True
    """Whether a client may answer a question of a round twice."""
    estimates: ClassVar[bool] = False
    """Whether rules see estimates in place of the exact products of updates."""
    excluded: frozenset[int] = frozenset()
    """Clients whose own scores do not count."""
    note: str = ""
    """A line for whoever reads the end of a run."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False)(cls)

    def __post_init__(self) -> None:
        check(self, "extension")

    # Making it.

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """The extension that an option asks for; ``None`` where there is nothing to do."""
        return cls()

    def participants(self, everyone: Federation) -> Federation:
        """The clients that train."""
        return everyone

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        """Take what it needs from the run's plan, and reject what cannot be combined with it."""

    def verbs(self, verbs: "dict[str, Verb]") -> "dict[str, Verb]":
        """The verbs of the run, with those that it adds or replaces."""
        return verbs

    def for_newcomers(self) -> "Extension | None":
        """What stands in for it where clients join after training."""
        return self

    # Where clients work.

    def client_data(self, data: ClientData, round: int) -> ClientData:
        """The samples that a client uses in this round."""
        return data

    def before_fit(self, site: "Site", client: "Client", received: Payload) -> None:
        """Before a client fits."""

    def after_fit(self, site: "Site", client: "Client", received: Payload, reply: Any) -> Any:
        """The reply that leaves a client after it fitted."""
        return reply

    def judge(self, judgement: "Judgement") -> None:
        """Change or note what the evaluation of one client's model is about."""

    # Where the server works.

    def before_training(self, run: "Run") -> None:
        """Before the first question of a run, also of one that is resumed."""

    def replies(self, server: "Server", replies: dict[int, Reply], sent: Mapping[int, Payload]) -> dict[int, Reply]:
        """The replies of a round's clients, before they are checked."""
        return replies

    def updates(self, server: "Server", aggregation: "Aggregation", make: MakeUpdates) -> MakeUpdates:
        """What makes the updates that the rule sees."""
        return make

    def combine(self, server: "Server", replies: Mapping[int, Any], is_whole: bool) -> Combined | None:
        """The whole aggregation, where it is not the rule on the clients' updates.

        ``is_whole`` is false where a method combines several things per round, or by a rule of its own.
        """
        return None

    def total(
        self,
        server: "Server",
        verb: str,
        question: Payload,
        replies: Mapping[int, Any],
        rows: int,
        columns: Sequence[str],
    ) -> Tensor | None:
        """The sum of what all clients answered to a question whose verb is ``summed``, (rows, columns) float64.

        ``None`` where single answers reached the server, which then adds them up itself.
        """
        return None

    def unused(self, server: "Server") -> str | None:
        """A warning for a round in which the method aggregated nothing by the rule."""
        return None

    def after_round(self, run: "Run") -> None:
        """After a round, before its evaluation."""

    def after_training(self, run: "Run", result: "Result") -> "Result":
        """The result of a finished run."""
        return result


def extensions_of(config: Config, rule: Rule) -> list[Extension]:
    """The extensions of a run in the order in which they are applied."""
    wanted = [path for name, path in BY_DATA.items() if config.data.name == name]
    wanted += [path for need, path in BY_RULE.items() if getattr(rule, need)]
    wanted += [path for option, path in BY_OPTION.items() if getattr(config, option) != default(option)]
    own = [] if config.extension is None else [config.extension.build()]
    first, last = ([resolve_name(path).of(config) for path in paths] for paths in (wanted, LAST))
    return [extension for extension in (*first, *own, *last) if extension is not None]
