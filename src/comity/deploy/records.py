"""Records of ``model.json``."""

# msgspec creates a new list per record

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from comity.config import BALANCED
from comity.data import Schema
from comity.results import Count, Fixed, Gain, Real, require

FORMAT = 1
"""Version of the model format; increase it for a change that makes old models unreadable."""

MOST_OPTIONS = 10_000
"""Maximum characters of a model's or method's options, against absurdly large networks."""
Side = Annotated[int, Meta(ge=1, le=2**24)]
Text = Annotated[str, Meta(max_length=400)]
Weight = Annotated[float, Meta(ge=0, le=1 + 1e-6)]


class Version(Struct):
    format: Any = None


class Inputs(Fixed, kw_only=True, frozen=True):
    """The inputs of the model."""

    shape: Annotated[list[Side], Meta(min_length=1, max_length=3)]
    """Shape of one sample for the networks: features; channels, time; or channels, height, width."""
    scaled: bool = False
    """Whether features are standardised; a missing value then becomes the mean."""
    pixels: bool = False
    """Whether samples are uint8 images."""
    centred: bool = True
    """Whether pixels are scaled to −1 to 1, otherwise to 0 to 1."""
    schema: Schema | None = None
    """How rows of a table become features."""

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
    """For an own model: whether it was trained on all of the client's samples, or without the held-out ones."""
    shares: list[Weight] | None = None
    """Class shares that the model expects: its mean prediction on the client's samples except tests."""


class Provenance(Fixed, kw_only=True, frozen=True):
    """Origin of a model."""

    client: Text
    run: Text = ""
    """Title of the run: ``FedRep, guarded + ConFREE``."""
    key: Text = ""
    data: Text = ""
    """Name of the data."""
    fingerprint: Text = ""
    """Checksum of the data."""
    comity: Text = ""
    trainer: Text = ""
    date: Text = ""
    seed: int = 0
    rounds: Count = 0


class Performance(Fixed, kw_only=True, frozen=True):
    """Performance on the client's own tests, which no model was trained on."""

    score: Real
    """Score by the metric that decides."""
    local: Real = math.nan
    """Score of the client's local baseline; null without one."""
    train_samples: Count = 0
    test_samples: Count = 0
    margin: Real = math.nan
    gain: Gain | None = None
    """Gain over the local baseline, with its interval and the client's state."""


class ModelInfo(Fixed, kw_only=True, frozen=True):
    """The content of ``model.json``: a client's model."""

    format: int
    model: dict[str, Any]
    """The architecture with its options."""
    classes: Annotated[list[Text], Meta(min_length=1, max_length=100_000)]
    inputs: Inputs
    experts: Annotated[list[ExpertInfo], Meta(min_length=1, max_length=3)]
    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"]
    """The metric that decides. For balanced accuracy the class with the largest p(y|x) / π(y) is predicted, where π are
    the mixed ``shares``; otherwise the most probable class."""
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
