"""A federation as a scikit-learn classifier: fitted on rows of all clients, it predicts with each client's model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity._errors import ComityError, install
from comity.compare import ClientTable, LoadedStudy, Verdict
from comity.data import GIVEN, Dataset, dataset_of
from comity.deploy.estimator import ClientModel, InputError, load_model
from comity.engine import Callback, Run, run
from comity.results import schema

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ComityError(f"FederatedClassifier needs scikit-learn: {install('sklearn')}") from error

if TYPE_CHECKING:
    from sklearn.utils import Tags

TARGET, CLIENT = "(target)", "(client)"
"""Names of the columns that are added to a data frame."""


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # without stubs
    """Train one model per group of rows in a federation, and report for each group whether joining pays.

    ``FederatedClassifier(method="FedRep", guard="mixture").fit(X, y, groups=hospital)``. ``X`` is an array of numbers,
    with NaN for missing values, or a data frame, whose text columns become categories. Without ``groups`` all rows are
    one client. ``test_share`` of each group's rows is held out for testing; several ``seeds`` test more rows and give a
    more certain verdict, and the models are those of the first seed. ``options`` are further options of a run, such as
    ``{"rule.c": 0.4}``.

    After ``fit``: ``models_`` (a ``ClientModel`` per group), ``verdict_`` and ``clients_`` (one row per group: local
    training and joining, with a 95 % confidence interval and a state).
    """

    models_: dict[Any, ClientModel]
    verdict_: Verdict
    clients_: ClientTable | None
    classes_: NDArray[Any]

    def __init__(
        self,
        method: str = "FedAvg",
        rule: str = "Mean",
        guard: str | None = None,
        model: str | None = None,
        rounds: int = 30,
        lr: float = 0.05,
        metric: str | None = None,
        test_share: float = 0.3,
        seeds: int = 1,
        random_state: int = 0,
        progress: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.rule, self.guard, self.model = method, rule, guard, model
        self.rounds, self.lr, self.metric, self.test_share = rounds, lr, metric, test_share
        self.seeds, self.random_state, self.progress, self.options = seeds, random_state, progress, options

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train a federation whose clients are the ``groups`` of rows."""
        data = self._dataset(X, y, groups)
        names = np.unique(data.columns["client"])
        given = {str(value): value for value in ([0] if groups is None else np.unique(np.asarray(groups)).tolist())}
        named: dict[str, Any] = {"method": self.method, "rule": self.rule, "guard": self.guard, "model": self.model}
        chosen = {name: value for name, value in named.items() if value is not None}
        chosen |= {"rounds": self.rounds, "lr": self.lr, "test_share": self.test_share, "metric": self.metric}
        chosen |= self.options or {}
        with TemporaryDirectory() as folder:
            for seed in range(self.random_state, self.random_state + self.seeds):
                more = {"seed": seed, "save_models": seed == self.random_state, "out": Path(folder) / f"s{seed}"}
                bars = [_Bar(f"seed {seed}")] if self.progress else []
                done = run(data=data, callbacks=bars, **chosen | more)
                if not done.done:
                    raise ComityError("training was stopped")
            found = sorted((Path(folder) / f"s{self.random_state}" / schema.MODELS).glob("*"))
            if len(found) != len(names):
                raise ComityError(f"models of {len(found)} groups were saved, of {len(names)} that there are")
            self.models_ = {given[name]: load_model(path) for name, path in zip(names, found, strict=True)}
            verdict = LoadedStudy(folder).verdict
            self.clients_ = verdict.cell.client_table if verdict.cell is not None and verdict.cell.clients else None
            self.verdict_ = replace(verdict, cell=None)
        return self

    def predict_proba(self, X: Any, groups: ArrayLike | None = None) -> NDArray[np.float64]:
        """Probabilities (rows, classes), each row by the model of its group."""
        check_is_fitted(self)
        X = self._checked(X)
        found = np.empty((len(X), len(self.classes_)))
        for model, rows in self._by_model(len(X), groups):
            found[rows] = model.predict_proba(_rows(X, rows))
        return found

    def predict(self, X: Any, groups: ArrayLike | None = None) -> NDArray[Any]:
        """The class of each row, by the model of its group and the decision rule of the metric that decides."""
        probabilities = self.predict_proba(X, groups)
        places = np.empty(len(probabilities), np.int64)
        for model, rows in self._by_model(len(probabilities), groups):
            places[rows] = model.decide(probabilities[rows])
        return self.classes_[places]

    def _by_model(self, count: int, groups: ArrayLike | None) -> Iterator[tuple[ClientModel, NDArray[np.int64]]]:
        """Each model with the rows that it predicts."""
        if groups is None and len(self.models_) > 1:
            raise InputError(f"there is a model for each of {len(self.models_)} groups; give groups, one per row")
        whose = np.array([next(iter(self.models_))] * count) if groups is None else np.asarray(groups)
        if whose.shape != (count,):
            raise InputError(f"got groups of shape {whose.shape} for {count} rows")
        for value in np.unique(whose).tolist():
            if value not in self.models_:
                raise InputError(f"no model for the group {value!r}; known: {', '.join(map(str, self.models_))}")
            yield self.models_[value], np.flatnonzero(whose == value)

    def _dataset(self, X: Any, y: ArrayLike, groups: ArrayLike | None) -> Dataset:
        """The rows of all groups; a data frame with text columns is read with the schema of a table."""
        if _is_table(X):
            self.feature_names_in_ = np.array([str(name) for name in X.columns], dtype=object)
            self.n_features_in_ = len(self.feature_names_in_)
            labels = np.asarray(y)
        else:
            X, labels = validate_data(self, X, y, dtype=np.float32, ensure_all_finite="allow-nan", ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"the target has one class, {self.classes_[0]!r}; a classifier needs two")
        owner = np.zeros(len(codes), np.int64) if groups is None else np.asarray(groups)
        if owner.shape != codes.shape:
            raise InputError(f"got groups of shape {owner.shape} for {len(codes)} rows")
        if not _is_table(X):
            names = [str(name) for name in self.classes_]
            return Dataset(GIVEN, X, codes, len(names), {"client": owner.astype(str)}, names)
        columns = {str(name): list(X[name]) for name in X.columns}
        names = [f"{place:06d}" for place in codes]  # sorted like the classes
        made = dataset_of({**columns, TARGET: names, CLIENT: owner.astype(str)}, {"target": TARGET, "client": CLIENT})
        assert isinstance(made, Dataset)
        return replace(made, columns={"client": owner.astype(str)})

    def _checked(self, X: Any) -> Any:
        if _is_table(X):
            return X
        return validate_data(self, X, reset=False, dtype=np.float32, ensure_all_finite="allow-nan")

    def __sklearn_tags__(self) -> "Tags":
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class _Bar(Callback):
    """A progress bar, for a terminal or a notebook."""

    def __init__(self, title: str) -> None:
        from rich.progress import Progress

        self.bar, self.title = Progress(transient=True), title
        self.task: Any = None

    def on_start(self, run: Run) -> None:
        title = f"{self.title}: {'local training' if run.config.is_local else run.title}"
        self.bar.start()
        self.task = self.bar.add_task(title, total=run.config.last_round)

    def on_round(self, run: Run, record: Any) -> None:
        self.bar.update(self.task, completed=record.round)

    def on_end(self, run: Run) -> None:
        self.bar.stop()


def _is_table(X: Any) -> bool:
    """Whether this is a data frame with columns that are not numeric."""
    kinds = getattr(X, "dtypes", None)
    return (
        hasattr(X, "columns") and kinds is not None and any(getattr(each, "kind", "O") not in "biuf" for each in kinds)
    )


def _rows(X: Any, rows: NDArray[np.int64]) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
