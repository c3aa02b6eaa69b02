"""The interface of extensions: features that change a run but are neither its method nor its rule.

An extension is implemented in the package of its feature. The engine calls its hooks at the points below and knows
nothing else about it. An object belongs to one run: some hooks are called on the client side, others on the server.
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
"""Builds the updates for a rule from rows, base, layout, sizes, losses and ids."""


@dataclass_transform(kw_only_default=True)
class Extension:
    """Change a run without changing its method. Override the hooks you need.

    Annotated attributes of a subclass are options, as in a method: ``strength: float = 1.0``. Use your extension with
    ``comity run --extension mymodule.MyExtension --extension.strength 0.5``.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Further metrics of each client's model."""
    baselines: ClassVar[tuple[Literal["all", "train"], ...]] = ()
    """Further local baselines that the extension needs: "train" is one trained without the validation samples."""
    repeatable: ClassVar[bool] = True
    """Whether a client may safely answer the same question twice."""
    estimates: ClassVar[bool] = False
    """Whether rules get estimates instead of exact products of updates."""
    excluded: frozenset[int] = frozenset()
    """Clients left out of the reported scores, such as malicious ones."""
    note: str = ""
    """A line that is printed at the end of a run."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False)(cls)

    def __post_init__(self) -> None:
        check(self, "extension")

    # Creation.

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """The extension that an option asks for; ``None`` if it has nothing to do."""
        return cls()

    def participants(self, everyone: Federation) -> Federation:
        """The clients that train."""
        return everyone

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        """Take what the extension needs from the run's plan; reject options that cannot be combined with it."""

    def verbs(self, verbs: "dict[str, Verb]") -> "dict[str, Verb]":
        """The verbs of the run, with those that the extension adds or replaces."""
        return verbs

    def for_newcomers(self) -> "Extension | None":
        """The extension to use for clients that join after training, or ``None``."""
        return self

    # On the client.

    def client_data(self, data: ClientData, round: int) -> ClientData:
        """The samples that a client uses in this round."""
        return data

    def before_fit(self, site: "Site", client: "Client", received: Payload) -> None:
        """Called before a client fits."""

    def after_fit(self, site: "Site", client: "Client", received: Payload, reply: Any) -> Any:
        """Called after a client has fitted; returns the reply to send."""
        return reply

    def judge(self, judgement: "Judgement") -> None:
        """Modify or annotate the evaluation of one client's model."""

    # On the server.

    def before_training(self, run: "Run") -> None:
        """Called before the first question of a run, also after a resume."""

    def replies(self, server: "Server", replies: dict[int, Reply], sent: Mapping[int, Payload]) -> dict[int, Reply]:
        """The replies of a round's clients, before they are checked."""
        return replies

    def updates(self, server: "Server", aggregation: "Aggregation", make: MakeUpdates) -> MakeUpdates:
        """Wrap the function that builds the updates for the rule."""
        return make

    def combine(self, server: "Server", replies: Mapping[int, Any], is_whole: bool) -> Combined | None:
        """Replace the aggregation; return ``None`` to apply the rule to the clients' updates.

        ``is_whole`` is false if a method combines several parts per round, or uses its own rule.
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
        """The sum over all clients of the tensor that a verb names in ``Verb.summed``, (rows, columns) float64.

        ``None`` if the server got single answers, which it then adds up itself.
        """
        return None

    def unused(self, server: "Server") -> str | None:
        """A warning for a round in which the method did not apply the rule."""
        return None

    def after_round(self, run: "Run") -> None:
        """Called after a round, before its evaluation."""

    def after_training(self, run: "Run", result: "Result") -> "Result":
        """Complete the result of a finished run."""
        return result


def extensions_of(config: Config, rule: Rule) -> list[Extension]:
    """The extensions of a run, in the order in which they are applied."""
    wanted = [path for name, path in BY_DATA.items() if config.data.name == name]
    wanted += [path for need, path in BY_RULE.items() if getattr(rule, need)]
    wanted += [path for option, path in BY_OPTION.items() if getattr(config, option) != default(option)]
    own = [] if config.extension is None else [config.extension.build()]
    first, last = ([resolve_name(path).of(config) for path in paths] for paths in (wanted, LAST))
    return [extension for extension in (*first, *own, *last) if extension is not None]
