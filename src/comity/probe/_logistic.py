"""Logistic regression from sums: the global model of all sites, and each site's own model.

The global model minimises

    Σ_sites Σ_rows −log softmax(Wᵀx)_y + ½ λ |W|²        (intercepts are not penalised)

with L-BFGS. In each step a site replies with one vector, loss and gradient summed over its rows, and the server needs
only the sum of these vectors, which secure aggregation can compute under masks. A site's own model minimises the same
over its own rows with the same λ. The problem is convex with one solution: there is no learning rate, no number of
rounds and no training luck.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from comity.data import Split

Array = NDArray[np.float64]
Fit = Callable[[Callable[[Array], Array]], Array]
"""Fits weights; takes a function that returns the sum of the sites' replies to a model."""
PENALTY = 1.0
"""λ, for features with a standard deviation of about 1: scikit-learn's ``C=1``, or ``C=2`` for two classes."""
MOST_STEPS = 200
TOLERANCE = 1e-5
"""Largest entry of the gradient, per row, at which the search stops."""


class Rows(NamedTuple):
    """The rows of one site."""

    x: Array
    """(n, features + 1): the last column is 1."""
    y: NDArray[np.int64]

    @classmethod
    def of(cls, *splits: Split) -> "Rows":
        x = np.concatenate([split.x.cpu().double().flatten(1).numpy() for split in splits])
        y = np.concatenate([split.y.cpu().numpy() for split in splits])
        return cls(np.concatenate([x, np.ones((len(x), 1))], axis=1), y)


def log_probabilities(weights: Array, x: Array) -> Array:
    """(n, classes) log-probabilities from weights (features + 1, classes)."""
    logits = x @ weights
    logits -= logits.max(1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def reply(weights: Array, rows: Rows) -> Array:
    """A site's reply to a model: number of rows, loss and gradient, summed over rows, in one vector."""
    predicted = log_probabilities(weights, rows.x)
    places = np.arange(len(rows.y)), rows.y
    loss = -predicted[places].sum()
    error = np.exp(predicted)
    error[places] -= 1
    return np.concatenate([[len(rows.y), loss], (rows.x.T @ error).ravel()])


def fit(ask: Callable[[Array], Array], features: int, classes: int, start: Array | None = None) -> Array:
    """Minimise the penalised loss; ``ask`` returns the sum of the sites' replies to a model.

    Returns the weights, (features + 1, classes).
    """
    from scipy.optimize import minimize

    shape = features + 1, classes
    penalty = np.full(shape, PENALTY)
    penalty[-1] = 0

    def objective(flat: Array) -> tuple[float, Array]:
        rows, loss, *_ = total = ask(flat.reshape(shape))
        shrink = penalty.ravel() * flat
        return (loss + 0.5 * shrink @ flat) / rows, (total[2:] + shrink) / rows

    first = np.zeros(shape) if start is None else start
    options = {"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS, "gtol": TOLERANCE, "ftol": 1e-12}
    found = minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x).reshape(shape)


def side_by_side(ask: Callable[[dict[int, Array]], dict[int, Array]], fits: Sequence[Fit]) -> list[Array]:
    """Run several fits whose questions are sent together, by index, so that remote sites are asked less often."""
    questions: SimpleQueue[tuple[int, Array | None]] = SimpleQueue()
    answers: list[SimpleQueue[Array | BaseException]] = [SimpleQueue() for _ in fits]

    def work(k: int) -> Array:
        def ask_here(weights: Array) -> Array:
            questions.put((k, weights.copy()))
            answer = answers[k].get()
            if isinstance(answer, BaseException):
                raise answer
            return answer

        try:
            return fits[k](ask_here)
        finally:
            questions.put((k, None))

    with ThreadPoolExecutor(len(fits)) as pool:
        jobs, working, waiting = [pool.submit(work, k) for k in range(len(fits))], len(fits), dict[int, Array]()
        try:
            while working:
                k, weights = questions.get()
                if weights is None:
                    working -= 1
                else:
                    waiting[k] = weights
                if waiting and len(waiting) == working:
                    for asker, answer in ask(waiting).items():
                        answers[asker].put(answer)
                    waiting = {}
        except BaseException as error:
            for each in answers:
                each.put(error)  # every fit ends
            raise
    return [job.result() for job in jobs]


def common(sites: Sequence[Rows], classes: int, start: Array | None = None) -> Array:
    """The global model of all ``sites``; for one site, its own model."""

    def ask(weights: Array) -> Array:
        return np.asarray(sum(reply(weights, rows) for rows in sites))

    return fit(ask, sites[0].x.shape[1] - 1, classes, start)
