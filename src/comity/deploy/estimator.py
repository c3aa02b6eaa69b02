"""A client's model as a fitted, frozen estimator in the style of scikit-learn."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError, one_line
from comity.config import BALANCED
from comity.data import Dataset, Problem, Schema
from comity.data import labels as labels_of
from comity.deploy.artefact import Artefact, model_folder, read_model
from comity.deploy.card import markdown, verdict
from comity.guard import FEEDBACK, OnlineGuard, Report
from comity.guard import opened as opened_guard
from comity.guard import read as read_guard
from comity.metrics import balanced_decisions

if TYPE_CHECKING:
    from sklearn.utils import Tags

Floats = NDArray[np.float64]

MARGIN = 0.02
"""Margin for feedback if the run had none."""


class InputError(ComityError, ValueError):
    """Samples that do not fit a model."""


def load_model(path: Path | str, *, allow_code: bool = False) -> "ClientModel":
    """Load a client's model from its folder in ``models/`` of a run folder.

    ``allow_code``: it may name your own networks and methods.
    """
    artefact, folder = read_model(path, allow_code=allow_code), model_folder(Path(path))
    known = read_guard(folder / FEEDBACK) if (folder / FEEDBACK).is_file() else None
    if known is None:
        return ClientModel(artefact, folder=folder)
    known.new_version(artefact.info.digest)
    return ClientModel(artefact, known.weights, folder=folder)


class ClientModel:
    """A fitted classifier that never changes; ``fit`` does nothing, as for a frozen estimator.

    ``predict`` and ``predict_proba`` take a data frame or a mapping of columns if the model was trained on a table, or
    an array of raw samples: features (n, features), with NaN for missing values, series (n, channels, time), or images
    in the format of the training data.
    """

    _estimator_type = "classifier"

    def __init__(
        self, artefact: Artefact, weights: Sequence[float] | Floats | None = None, folder: Path | None = None
    ) -> None:
        """``weights``: of its experts, instead of the artefact's; ``folder``: where it was read from."""
        self.artefact, self.folder = artefact, folder
        given = [each.weight for each in artefact.info.experts] if weights is None else weights
        if len(given) != len(artefact.nets):
            raise ComityError(f"got {len(given)} weights for {len(artefact.nets)} models")
        self.weights: Floats = np.array(given, np.float64)
        """Mixture weights of the client's own model, the federated one, and possibly the global one."""
        names = artefact.info.classes
        whole = all(name.lstrip("-").isdecimal() and str(int(name)) == name for name in names)
        self.classes_: NDArray[Any] = np.array([int(name) for name in names] if whole else names)
        """Class names; integers if all names are integers."""

    # Description.

    @property
    def schema(self) -> Schema | None:
        """The columns of the table that it takes; ``None`` for other samples."""
        return self.artefact.info.inputs.schema

    @property
    def n_features_in_(self) -> int:
        """Number of features of a sample, with one per category; for series and images all numbers of a sample."""
        return int(np.prod(self.artefact.info.inputs.shape))

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        if self.schema is None:
            raise AttributeError("feature_names_in_: the model takes samples without names of features")
        return np.array(self.schema.features, dtype=object)

    @property
    def card(self) -> str:
        """Description of the model, its origin and its measured performance, in Markdown."""
        return markdown(self.artefact.info)

    def __repr__(self) -> str:
        about, count = self.artefact.info.provenance, len(self.classes_)
        return f"ClientModel({one_line(about.client, 40)}, {one_line(about.run, 60)}, {count} classes)"

    def _repr_html_(self) -> str:
        about = self.artefact.info.provenance
        used = ", ".join(
            f"{100 * weight:.3g} % {expert.name}"
            for weight, expert in zip(self.weights, self.artefact.info.experts, strict=True)
        )
        rows = {
            "Model of": about.client,
            "Trained": f"{about.run}, {about.data}",
            "Predicts": ", ".join(map(str, self.classes_[:10])) + (" …" if len(self.classes_) > 10 else ""),
            "Uses": used,
            "Measured": verdict(self.artefact.info).replace("**", ""),
        }
        cells = (f"<tr><th>{name}</th><td>{html.escape(one_line(text))}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"

    # Prediction.

    def encode(self, rows: Any) -> tuple[NDArray[Any], list[Problem]]:
        """Raw samples in the format of a data set, and the cells that do not fit the schema."""
        if hasattr(rows, "toarray"):
            raise InputError("sparse samples are not supported: give rows.toarray()")
        names = rows.keys() if isinstance(rows, Mapping) else getattr(rows, "columns", None)
        if names is not None and self.schema is not None:
            columns = {str(name): rows[name] for name in names}
            taken = {name: list(columns[name]) for name in self.schema.columns if name in columns}
            if len({len(cells) for cells in taken.values()}) > 1:
                raise InputError("the table has columns of different lengths")
            if taken and not next(iter(taken.values())):
                raise InputError("the table has no rows; a model needs at least 1")
            x, _, _, problems = self.schema.encode(taken)
            return x, problems
        if isinstance(rows, Mapping):
            raise InputError("the model was not trained on a table: give it an array of samples")
        return self._samples(rows), []

    def _samples(self, rows: Any) -> NDArray[Any]:
        """Check an array like training data."""
        inputs = self.artefact.info.inputs
        try:
            given = np.asarray(rows)
        except (ValueError, TypeError) as error:
            raise InputError(f"the samples are no array: {one_line(error, 200)}") from error
        if given.ndim == len(inputs.shape) == 1:
            raise InputError(f"got one sample of shape {given.shape}. Reshape your data: give (samples, features)")
        if not given.size:
            raise InputError("found array with 0 sample(s) while a minimum of 1 is required")
        if given.dtype == object:
            try:
                given = given.astype(np.float32)
            except (ValueError, TypeError) as error:
                raise InputError(f"the samples are no numbers: {one_line(error, 200)}") from error
        if (given.dtype == np.uint8) != inputs.pixels and len(inputs.shape) == 3:
            wanted = "uint8 pixels from 0 to 255" if inputs.pixels else "floats, as training had them"
            raise InputError(f"got images of type {given.dtype}; the model takes {wanted}")
        try:
            samples = Dataset("the samples", given, np.zeros(len(given), np.int64), 1, standardise=inputs.scaled)
        except ComityError as error:
            raise InputError(str(error).removeprefix("data the samples: ")) from error
        if list(samples.shape) != inputs.shape:
            if len(inputs.shape) == len(samples.shape) == 1:
                count, own = samples.shape[0], inputs.shape[0]
                raise InputError(f"X has {count} features, but ClientModel is expecting {own} features as input")
            sizes = ["×".join(map(str, each)) for each in (samples.shape, inputs.shape)]
            raise InputError(f"got samples of {sizes[0]}; the model takes {sizes[1]}")
        return samples.x

    def expert_probabilities(self, rows: Any) -> Floats:
        """Probabilities (experts, rows, classes) of each of the mixed models, in the order of ``weights``."""
        return self.artefact.probabilities(self._fitting(rows))

    def _fitting(self, rows: Any) -> NDArray[Any]:
        samples, problems = self.encode(rows)
        if problems:
            row, column, reason = problems[0]
            raise InputError(f"row {row + 1}, column {column}: {reason}")
        return samples

    def predict_proba(self, rows: Any) -> Floats:
        """Probabilities (rows, classes), in the order of ``classes_``."""
        mixed = self._mixed(self._fitting(rows))
        if (lost := np.flatnonzero(~np.isfinite(mixed).all(1))).size:
            raise InputError(f"row {lost[0] + 1}: the prediction is not finite; are its numbers of the right size?")
        return mixed

    def predict(self, rows: Any) -> NDArray[Any]:
        """The class of each row, by the decision rule of the metric that decides."""
        return self.classes_[self.decide(self.predict_proba(rows))]

    def answers(self, samples: NDArray[Any]) -> tuple[NDArray[np.int64], Floats]:
        """Indices of predicted classes and probabilities for encoded samples; −1 if not finite."""
        mixed = self._mixed(samples)
        finite = np.asarray(np.isfinite(mixed).all(1))
        return np.where(finite, self.decide(np.where(finite[:, None], mixed, 1.0)), -1), mixed

    def _mixed(self, samples: NDArray[Any]) -> Floats:
        """Mixed probabilities; models without weight are not evaluated."""
        mixed: Floats = np.tensordot(self.weights, self.artefact.probabilities(samples, self.weights > 0), 1)
        with np.errstate(invalid="ignore"):
            return np.asarray(mixed / mixed.sum(1, keepdims=True))

    def decide(self, probabilities: Floats) -> NDArray[np.int64]:
        """Indices of the classes to predict with these probabilities."""
        if (shares := self.expected_shares) is None:
            return np.asarray(probabilities.argmax(1))
        with np.errstate(divide="ignore"):
            return np.asarray(balanced_decisions(np.log(probabilities), shares))

    def feedback(self, rows: Any, labels: Any) -> Report:
        """Learn from the true classes of predicted rows, in their order and each once.

        The labels update the weights of the own and the federated model, and an alarm switches back to the own model.
        The state stays in the folder of the model (docs/how-to/feedback.md).
        """
        if self.folder is None:
            raise InputError("feedback is kept in the folder of a model; this one was not read from a folder")
        if len(self.weights) < 2:
            raise InputError("feedback needs a client's own model and the federated one; this folder has only one")
        places = {str(name): place for place, name in enumerate(self.artefact.info.classes)}
        name_of = labels_of(self.artefact.info.classes)
        classes = [places.get(name_of(each), -1) for each in np.asarray(labels).tolist()]
        if -1 in classes:
            odd = np.asarray(labels).tolist()[classes.index(-1)]
            raise InputError(f"unknown class {one_line(odd, 40)}; known: {', '.join(self.artefact.info.classes[:10])}")
        probabilities = self.expert_probabilities(rows)
        with opened_guard(self.folder, self._start_guard) as guard:
            guard.new_version(self.artefact.info.digest)
            report = guard.update(probabilities, np.array(classes, np.int64))
            self.weights = guard.weights
        return report

    def _start_guard(self) -> OnlineGuard:
        info, shares = self.artefact.info, self.expected_shares
        margin = info.performance.margin if info.performance is not None else math.nan
        return OnlineGuard.start(
            self.weights,
            info.digest,
            info.metric,
            margin if 0 <= margin < 1 else MARGIN,
            class_shares=() if shares is None else shares / shares.sum(),
        )

    @property
    def expected_shares(self) -> Floats | None:
        """The class shares that the mixture expects, if balanced accuracy decides."""
        info = self.artefact.info
        if info.metric != BALANCED:
            return None
        return self.weights @ np.array([each.shares for each in info.experts], np.float64)

    # scikit-learn's protocol for a fitted estimator.

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Do nothing: the model does not change."""
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def set_params(self, **params: Any) -> Self:
        if params:
            raise InputError(f"a fitted model has no parameters, got {', '.join(params)}")
        return self

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> "Tags":
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        inputs = self.artefact.info.inputs
        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(multi_class=len(self.classes_) > 2),
            input_tags=InputTags(
                two_d_array=len(inputs.shape) == 1, three_d_array=len(inputs.shape) > 1, allow_nan=inputs.scaled
            ),
            requires_fit=False,
        )
