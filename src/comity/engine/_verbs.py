"""What a client can be asked to do, and what travels there and back."""

import inspect
import math
from dataclasses import dataclass
from typing import Any, get_type_hints

from torch import Tensor

from comity._errors import ComityError
from comity.methods import Method, Payload, field_types

READ_ONLY_VERBS = ("evaluate", "export")
"""Verbs of the engine's own that are its own business, and change nothing that a client keeps."""
MASKED_VERBS = ("share", "mask", "against", "unmask")
"""Verbs of the engine's own by which updates are summed that nobody may see."""
ENGINE_VERBS = ("fit", *READ_ONLY_VERBS, "weigh")
"""Those that every method's clients have."""
JUDGING_VERBS = ("evaluate", "weigh")
"""Verbs of the engine's own in which a client's model is compared with what the client has alone."""


@dataclass(frozen=True)
class Verb:
    name: str
    message: type[Payload]
    reply: type[Payload]


class Scores(Payload):
    """How good a client's own model is. Shares are of correct answers."""

    n_train: int
    n_test: int
    own: float = math.nan
    """On the client's own tests."""
    loss: float = math.nan
    balanced: float | None = None
    """Each class of the client's own tests counts the same; ``None`` where they hold one class."""
    auc: float | None = None
    """Of the probabilities on the client's own tests; ``None`` where they hold one class."""
    validation: float | None = None
    validation_loss: float | None = None
    some: float | None = None
    """On its own tests and those of some other clients."""
    all: float | None = None
    """On everybody's tests."""
    common: float | None = None
    """Of the one model for everybody, on the client's own tests."""
    calibration: float | None = None
    """How far the confidence of its answers is from their accuracy."""
    only_local: int | None = None
    """Own tests that Local alone gets right."""
    only_joined: int | None = None
    """Own tests that this model alone gets right."""
    unguarded: float | None = None
    """Of the federated model without its guard, on the client's own tests."""
    own_weight: float | None = None
    """What the client's own model counts for under the guard."""
    bound: float | None = None
    """The error is above that of the client's own model by at most so much, as far as the guard promises."""


class Weighed(Payload):
    """A client has weighed its own model against the federated one."""

    own_weight: float


class Export(Payload):
    """A client's own model, whole."""

    model: Tensor


class StepLosses(Payload):
    """What several steps do to a client's loss: on its validation samples if it has any, or else on training samples.

    A model that diverged has a loss of `DIVERGED`.
    """

    before: float
    after: Tensor
    """A row for each step that was sent, a column for each of its lengths."""
    samples: int


DIVERGED = 1e6


def verbs_of(method: Method[Any, Any], tries_steps: bool = False) -> dict[str, Verb]:
    """By name: the engine's own verbs, and those that the method declares with ``@verb``.

    ``tries_steps``: the rule asks clients what a step would do to their losses.
    """
    message = method.message_type
    verbs = [
        Verb("fit", message, method.reply_type),
        Verb("evaluate", message, Scores),
        Verb("export", message, Export),
        Verb("weigh", message, Weighed),
    ]
    if tries_steps:
        verbs.append(Verb("try_steps", message, StepLosses))
    for name, function in inspect.getmembers(type(method), inspect.isfunction):
        if getattr(function, "is_verb", False):
            hints = get_type_hints(function)
            verbs.append(Verb(name, hints.get("received", object), hints.get("return", object)))
    for verb in verbs:
        for payload in (verb.message, verb.reply):
            if not issubclass(payload, Payload):
                raise ComityError(
                    f"method {type(method).__name__}: the verb {verb.name} must say what travels by annotations: "
                    f"def {verb.name}(self, client: Client, received: Question) -> MyReply"
                )
            field_types(payload)  # refuses a field that cannot travel
    return {verb.name: verb for verb in verbs}
