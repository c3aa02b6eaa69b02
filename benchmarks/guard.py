"""How often guards release a model that is too bad, and how much of the gain of joining they keep.

Counts: deployments with known risks. A client's own model and a candidate of known accuracies, with a known dependence
of their errors, are judged on n calibration samples; each guard decides which one to release.

- violation: the released model is worse than the client's own by more than the margin.
- kept: of the deployments whose candidate is truly better, the mean gain of what is released over the mean gain of the
  candidates, which is the unguarded one.
- net: the mean change of accuracy over all deployments, in points. The candidates are as often worse as better, so it
  is 0 without a guard; an oracle has the mean of the gains above 0.
- worst case: how often a candidate passes that is worse by the margin and a tenth of a point, in the worst of nine
  settings (found on other draws than those it is measured on), with a 95 % confidence interval in the CSV file.

Predictions: deployments with probabilities of simulated models, where the mixture of own and federated model is a
candidate as well, with weights from as many validation samples. Risks are measured on 10,000 test samples.

    python benchmarks/guard.py
    python benchmarks/guard.py --repeats 400 --csv runs/guard.csv
"""

import argparse
import csv
import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import log_softmax, logsumexp, roots_sh_legendre, xlogy
from scipy.stats import binom, binomtest

from comity._write import write_text
from comity.compare.harm import mcnemar
from comity.guard import (
    acceptance_limits,
    betting_test,
    excess_risk_bound,
    mixture_weights,
    posterior,
    regret_bound,
)
from guard_comparators import bernstein_test, progressive_weights

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]
Guard = Callable[[Counts, Counts, int, float], Flags]

DELTA = 0.05
SAMPLES = (50, 100, 250, 500)
MARGINS = (0.0, 0.01, 0.02, 0.05)
ACCURACIES = (0.6, 0.75, 0.9)
GAINS = np.arange(-10, 11) / 100
DEPENDENCES = (0.0, 0.5, 0.9)
"""0: errors are independent. 1: the better model errs only where the other does."""
JUST_TOO_BAD = 0.001
"""The worst case is a candidate whose risk exceeds the margin by a tenth of a point."""


def exact(worse: Counts, better: Counts, n: int, margin: float) -> Flags:
    return np.asarray((worse <= acceptance_limits(n, margin, DELTA)[better]) & (worse < better))


def betting(worse: Counts, better: Counts, n: int, margin: float) -> Flags:
    """``betting_test`` from counts, for many deployments at once."""
    (a, b), deployment = np.unique([worse, better], axis=1, return_inverse=True)
    x, weights = roots_sh_legendre(n // 2 + 2)
    log_capital = sum(
        xlogy(count[:, None], 1 - x + x * payoff / (1 - margin))
        for count, payoff in ((a, 0.0), (n - a - b, 1.0), (b, 2.0))
    )
    passes = logsumexp(log_capital + np.log(weights), axis=1) >= -np.log(DELTA)
    return np.asarray(passes & (a < b))[deployment]


def bernstein(worse: Counts, better: Counts, n: int, margin: float) -> Flags:
    """``bernstein_test`` from counts, for many deployments at once."""
    mean, L = (worse - better) / n, np.log(2 / DELTA)
    variance = (worse + better - n * mean**2) / (n - 1)
    return np.asarray(mean + np.sqrt(2 * variance * L / n) + 14 * L / (3 * (n - 1)) <= margin)


GUARDS: dict[str, Guard] = {
    "exact certificate": exact,
    "betting": betting,
    "empirical Bernstein": bernstein,
    "exact McNemar": lambda worse, better, *_: mcnemar(better, worse) <= DELTA,  # knows no margin
    "naive gate": lambda worse, better, *_: worse <= better,
    "unguarded": lambda worse, *_: np.ones(len(worse), dtype=bool),
}


def check_shortcuts(generator: np.random.Generator) -> None:
    """The two guards written out above decide as the library does."""
    n = 100
    for worse, better in generator.integers(0, 25, size=(100, 2)):
        differences = np.repeat([1.0, -1.0, 0.0], [worse, better, n - worse - better])
        a, b = np.array([worse]), np.array([better])
        for shortcut, test in ((betting, betting_test), (bernstein, bernstein_test)):
            passes = test(differences, 0.02, DELTA).p_value <= DELTA
            assert shortcut(a, b, n, 0.02)[0] == (passes and worse < better), (worse, better)


def outcome_probabilities(accuracy: float, gain: float, dependence: float) -> list[float]:
    """Of a sample that only the candidate gets wrong, that only the own model gets wrong, and all others."""
    own, candidate = 1 - accuracy, 1 - accuracy - gain
    both = own * candidate + dependence * (min(own, candidate) - own * candidate)
    worse, better = max(0.0, candidate - both), max(0.0, own - both)
    return [worse, better, 1 - worse - better]


def draw(n: int, gains: Array, repeats: int, generator: np.random.Generator) -> tuple[Array, Counts, Counts]:
    """The true gain and the two counts of every deployment."""
    settings = list(itertools.product(ACCURACIES, gains, DEPENDENCES))
    counts = [generator.multinomial(n, outcome_probabilities(*setting), size=repeats) for setting in settings]
    worse, better, _ = np.concatenate(counts).T
    return np.repeat([gain for _, gain, _ in settings], repeats), worse, better


def judge_counts(repeats: int, generator: np.random.Generator) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    trials = 50 * repeats
    for n in SAMPLES:
        gain, worse, better = draw(n, GAINS, repeats, generator)
        for margin in MARGINS:
            too_bad = gain < -margin - 1e-9
            _, bad_worse, bad_better = draw(n, np.array([-margin - JUST_TOO_BAD]), 2 * trials, generator)
            for name, guard in GUARDS.items():
                released = guard(worse, better, n, margin)
                violations = binomtest(int((released & too_bad).sum()), len(gain)).proportion_ci()
                to_choose, to_measure = guard(bad_worse, bad_better, n, margin).reshape(-1, 2, trials).sum(axis=2).T
                worst_case = binomtest(int(to_measure[to_choose.argmax()]), trials)
                worst = worst_case.proportion_ci()
                rows.append(
                    {
                        "samples": n,
                        "margin": 100 * margin,
                        "guard": name,
                        "deployments": len(gain),
                        "violations %": 100 * (released & too_bad).mean(),
                        "violations low %": 100 * violations.low,
                        "violations high %": 100 * violations.high,
                        "worst case %": 100 * worst_case.statistic,
                        "worst case low %": 100 * worst.low,
                        "worst case high %": 100 * worst.high,
                        "kept %": 100 * (gain * released)[gain > 0].sum() / gain[gain > 0].sum(),
                        "net": 100 * (gain * released).mean(),
                        "oracle net": 100 * np.maximum(gain, 0).mean(),
                    }
                )
    return rows


def power() -> list[dict[str, object]]:
    """How often the exact test certifies a candidate that is five points better, at a margin of two; no simulation."""
    rows: list[dict[str, object]] = []
    for n in SAMPLES:
        limits, b = acceptance_limits(n, 0.02, DELTA), np.arange(n + 1)
        row: dict[str, object] = {"samples": n}
        for differ in (0.1, 0.15, 0.2, 0.3, 0.4):
            worse, better = (differ - 0.05) / 2, (differ + 0.05) / 2
            passes = binom.cdf(limits, n - b, worse / (1 - better))
            row[f"differ on {100 * differ:.0f} %"] = 100 * float(binom.pmf(b, n, better) @ passes)
        rows.append(row)
    return rows


def predictions(n: int, correlation: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Log probabilities (samples, 10) of two models that know the label, class 0, through noise they partly share."""
    noise = generator.standard_normal((3, n, 10), dtype=np.float32)
    strength = generator.uniform(1.5, 3.2)
    models = []
    for own_noise, knows in zip(noise[1:], (strength, strength + generator.uniform(-0.6, 0.9)), strict=True):
        logits = np.sqrt(correlation) * noise[0] + np.sqrt(1 - correlation) * own_noise
        logits[:, 0] += knows
        models.append(log_softmax(generator.uniform(1, 3) * logits, axis=1))  # sure of themselves to different degrees
    return models[0], models[1]


def gains_by_guard(wrong: Flags, risks: Array, limits: Counts, half_limits: Counts) -> dict[str, float]:
    """The true gain under each guard, from the errors of own model, federated model and mixture on calibration."""
    own, federated, mixture = range(3)
    worse, better = (wrong & ~wrong[own]).sum(axis=1), (~wrong & wrong[own]).sum(axis=1)

    def best(*passing: int) -> int:
        return min([own, *passing], key=lambda model: int(worse[model] - better[model]))

    def certified(*order: int) -> int:
        return best(*itertools.takewhile(lambda model: worse[model] <= limits[better[model]], order))

    released = {
        "oracle": int(np.argmin(risks)),
        "federated, unguarded": federated,
        "mixture, unguarded": mixture,
        "certified: federated": certified(federated),
        "certified: mixture": certified(mixture),
        "certified: mixture, then federated": certified(mixture, federated),
        "certified: federated, then mixture": certified(federated, mixture),
        "certified: both, each at delta/2": best(*(m for m in (1, 2) if worse[m] <= half_limits[better[m]])),
    }
    return {name: float(risks[own] - risks[model]) for name, model in released.items()}


def judge_predictions(deployments: int, generator: np.random.Generator) -> list[dict[str, object]]:
    """What certificates keep where the mixture is a candidate too, and how near its log-loss is to the best one."""
    rows: list[dict[str, object]] = []
    margin, tests = 0.02, 10_000
    for n in (100, 250):
        limits, half_limits = acceptance_limits(n, margin, DELTA), acceptance_limits(n, margin, DELTA / 2)
        gains: dict[str, list[float]] = {}
        log_losses: dict[str, list[float]] = {}
        for _ in range(deployments):
            own, federated = predictions(2 * n + tests, generator.choice([0.3, 0.6, 0.85]), generator)
            probabilities = np.exp(np.stack([own, federated]).astype(float))
            validation = probabilities[:, :n, 0].T
            weights = mixture_weights(validation).weights
            test = probabilities[:, 2 * n :, 0].T
            for name, w in {
                "posterior mean, uniform": weights,
                "posterior mean, Dirichlet(½)": posterior(validation, 0.5).weights,
                "progressive mixture, Dirichlet(½)": progressive_weights(validation, generator, 0.5),
                "own": np.array([1.0, 0.0]),
                "federated": np.array([0.0, 1.0]),
            }.items():
                log_losses.setdefault(name, []).append(-np.log(test @ w).mean())
            best = min(-np.log(test @ [1 - x, x]).mean() for x in np.linspace(0, 1, 101))
            log_losses.setdefault("best mixture", []).append(best)

            mixture = np.tensordot(weights, probabilities, 1)
            wrong = np.argmax([*probabilities, mixture], axis=2) != 0
            risks = wrong[:, 2 * n :].mean(axis=1)
            for name, gain in gains_by_guard(wrong[:, n : 2 * n], risks, limits, half_limits).items():
                gains.setdefault(name, []).append(gain)
        for name, values in gains.items():
            change = np.array(values)
            rows.append(
                {
                    "samples": n,
                    "guard": name,
                    "deployments": deployments,
                    "net": 100 * change.mean(),
                    "kept of oracle %": 100 * change.mean() / np.mean(gains["oracle"]),
                    "worse than alone %": 100 * (change < 0).mean(),
                    "violations %": 100 * (change < -margin).mean(),
                }
            )
        bounds = {
            "posterior mean, uniform": excess_risk_bound(n, 2),
            "progressive mixture, Dirichlet(½)": regret_bound(n + 1, 2, 0.5) / (n + 1),
        }
        for name, values in log_losses.items():
            excess = np.array(values) - log_losses["best mixture"]
            rows.append(
                {
                    "samples": n,
                    "weights": name,
                    "excess log-loss": excess.mean(),
                    "standard error": excess.std() / np.sqrt(deployments),
                    "bound": bounds.get(name, ""),
                }
            )
    return rows


def show(rows: list[dict[str, object]], title: str, columns: tuple[str, ...], digits: int = 1) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(f"{v:.{digits}f}" if isinstance(v := row[c], float) else str(v) for c in columns))
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100, help="deployments for each setting")
    parser.add_argument("--deployments", type=int, default=600, help="deployments with predictions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=Path("runs/guard.csv"))
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    start = time.perf_counter()

    check_shortcuts(generator)
    counts = judge_counts(options.repeats, generator)
    columns = ("samples", "margin", "guard", "violations %", "violations high %", "worst case %", "worst case high %")
    show(counts, f"Counts: {counts[0]['deployments']} deployments a row", (*columns, "kept %", "net"))

    passing = power()
    show(
        passing, "How often the exact test passes a candidate 5 points better, in %; margin 2 points", tuple(passing[0])
    )

    with_predictions = judge_predictions(options.deployments, generator)
    guards = [row for row in with_predictions if "guard" in row]
    show(guards, "Predictions: own, federated and mixture; margin 2 points", tuple(guards[0]))
    weights = [row for row in with_predictions if "weights" in row]
    show(weights, "Log-loss above that of the best mixture, in nats", tuple(weights[0]), 4)

    rows = [*counts, *passing, *with_predictions]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    write_text(options.csv, text.getvalue())
    print(f"{options.csv} written; {time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
