"""Records of ``model.json``."""

# msgspec gives each record a list of its own

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from comity.config import BALANCED
from comity.data import Schema
from comity.results import Count, Fixed, Gain, Real, require

FORMAT = 1
"""Version of the format of models; a change that makes old ones unreadable raises it."""

MOST_OPTIONS = 10_000
"""Characters of a model's or method's options: a network of a million layers is none."""
Side = Annotated[int, Meta(ge=1, le=2**24)]
Text = Annotated[str, Meta(max_length=400)]
Weight = Annotated[float, Meta(ge=0, le=1 + 1e-6)]


class Version(Struct):
    format: Any = None


class Inputs(Fixed, kw_only=True, frozen=True):
    """What the model takes."""

    shape: Annotated[list[Side], Meta(min_length=1, max_length=3)]
    """One sample as the networks see it: features; channels, time; or channels, height, width."""
    scaled: bool = False
    """Whether means are subtracted and spreads divided by; a missing value then stands at the mean."""
    pixels: bool = False
    """Whether samples are images of uint8."""
    centred: bool = True
    """Whether pixels become −1 to 1, else 0 to 1."""
    schema: Schema | None = None
    """How the rows of a table become features."""

    def __post_init__(self) -> None:
        require(math.prod(self.shape) <= 2**28, f"shape {self.shape} is too large")
        features = None if self.schema is None else len(self.schema.features)
        require(features in (None, self.shape[0]), f"schema has {features} features, shape {self.shape}")


class ExpertInfo(Fixed, kw_only=True, frozen=True):
    """One of the models whose predictions are mixed."""

    name: Literal["own", "federated", "common"]
    weight: Weight
    method: dict[str, Any]
    """The method whose parts the network has, with its options."""
    trained_on: Literal["", "all", "train"] = ""
    """Of an own model: whether it learnt from all of the client's samples or not from those held out."""
    shares: list[Weight] | None = None
    """The class shares that it expects: its mean prediction on the client's samples but the tests."""


class Provenance(Fixed, kw_only=True, frozen=True):
    """Where a model comes from."""

    client: Text
    run: Text = ""
    """The title of the run: ``FedRep, guarded + ConFREE``."""
    key: Text = ""
    data: Text = ""
    """The name of the data."""
    fingerprint: Text = ""
    """Of the data: the same for the same samples."""
    comity: Text = ""
    trainer: Text = ""
    date: Text = ""
    seed: int = 0
    rounds: Count = 0


class Performance(Fixed, kw_only=True, frozen=True):
    """What was measured on the client's own tests, which no model was trained on."""

    score: Real
    """By the metric that decides."""
    local: Real = math.nan
    """The same of the client's local baseline; null where there is none."""
    train_samples: Count = 0
    test_samples: Count = 0
    margin: Real = math.nan
    gain: Gain | None = None
    """Over the local baseline, with its interval and the state of the client."""


class ModelInfo(Fixed, kw_only=True, frozen=True):
    """A client's model: ``model.json``."""

    format: int
    model: dict[str, Any]
    """The architecture, with its options."""
    classes: Annotated[list[Text], Meta(min_length=1, max_length=100_000)]
    inputs: Inputs
    experts: Annotated[list[ExpertInfo], Meta(min_length=1, max_length=3)]
    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"]
    """The metric that decides. By balanced accuracy the class with the largest p(y|x) / π(y) is predicted, where π are
    the mixed ``shares``; by all others the most probable class."""
    provenance: Provenance
    performance: Performance | None = None
    digest: Text = ""
    """SHA-256 of ``model.safetensors``."""

    def __post_init__(self) -> None:
        names, count = [each.name for each in self.experts], len(self.classes)
        for options in (self.model, *(each.method for each in self.experts)):
            require(len(str(options)) <= MOST_OPTIONS, "the options of the model or a method are too long")
        require(len(set(names)) == len(names), "experts has one of them twice")
        require(len(set(self.classes)) == count, "classes has one of them twice")
        require(abs(sum(each.weight for each in self.experts) - 1) < 1e-6, "the weights of experts do not sum to 1")
        for each in self.experts:
            known = each.shares is not None and len(each.shares) == count and sum(each.shares) > 0
            require(known or (each.shares is None and self.metric != BALANCED), f"experts: no shares of {each.name}")
        schema = self.inputs.schema
        require(schema is None or list(schema.classes) == self.classes, "classes are not those of the schema")
