"""Limits on the influence of single updates, and sketches of updates for rules."""

from functools import partial
from typing import TYPE_CHECKING, Any, Self

from comity._random import key_bytes
from comity.config import Config
from comity.engine import Aggregation, Extension, MakeUpdates
from comity.rules import Sketch, Updates, capped, check_sketch

if TYPE_CHECKING:
    from comity.engine import RunPlan, Server, Site


class Bound(Extension):
    """Base class: acts on the updates for a rule, so only if the method uses a rule."""

    def unused(self, server: "Server") -> str | None:
        method = type(server.method).__name__
        return f"method {method} uses no rule: max_share, clip_updates and sketch change nothing"


class Sketches(Bound):
    """Rules get each layer of an update as a random sketch."""

    estimates = True
    sketch: Sketch

    @classmethod
    def of(cls, config: Config) -> Self | None:
        assert config.sketch is not None
        return None if config.masked else cls(sketch=Sketch.of(config.sketch))  # masked clients send sketches anyway

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        check_sketch(self.sketch, plan.rule)

    def updates(self, server: "Server", aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        return partial(Updates, sketch=self.sketch, key=key_bytes(server.seed, "sketch", server.round))


class Caps(Bound):
    """Cap on the weight that a client gets by its declared size."""

    share: float

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(share=config.max_share)

    def updates(self, server: "Server", aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        aggregation.sizes = capped(aggregation.sizes, self.share)
        return make


class Clipping(Bound):
    """Scale updates longer than the round's median down to the median."""

    def updates(self, server: "Server", aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        def clipped(*rows: Any, **about: Any) -> Updates:
            return make(*rows, **about).clipped(server.link.hold)

        return clipped
