"""The online guard on a stream of 4,500 labels in whose middle third the server ships a bad model.

Five classes. The own model errs on 30.5 % of the samples and the federated one on 25 %. Two kinds of bad models:

- guessing: the federated model guesses, as sure as ever. Its log-loss is bad, and the weights leave it at once.
- well calibrated: it errs on 45 % and knows that, while the own model is far too sure of itself throughout. Its
  log-loss is better than that of the own model, so the weights stay with it; only the alarm sees the errors.

What is compared:

- own, federated: one model throughout.
- static: the weights from before deployment, one tenth on the own model.
- Bayes, fixed share: weights that follow the labels, without the alarm.
- guard: fixed share with the alarm at the margin, told of each version, as it is deployed.
- votes: errors expected where decisions are drawn by the guard's votes.

Then e-processes by themselves, on many streams in which the difference of the losses is known: false alarms at the
margin, labels until the alarm, labels until the certificate.

    python benchmarks/online_guard.py        # about two minutes of one core; writes evidence and docs/images
"""

import argparse
import csv
import io
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comity._write import atomically, write_text
from comity.guard import OnlineGuard, bets, log_capital
from comity.report._assets import themes

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
ROOT = Path(__file__).parents[1]
CLASSES, THIRD = 5, 1500
OWN_ERROR, GOOD_ERROR = 0.305, 0.25
KINDS = {"guessing": (0.695, 0.8, 0.75), "well calibrated": (0.999, 0.45, 0.55)}
"""By kind of bad model: how sure the own model is, how often the bad one errs, and how sure it is."""
STATIC = np.array([0.1, 0.9])
MARGIN, DELTA, SHARE = 0.02, 0.05, 0.002
THIRDS = ("before", "bad third", "after")


def stream(kind: str, random: np.random.Generator) -> tuple[Array, Labels]:
    """Predictions of the own and the federated model, and labels; some of the errors are common to both."""
    own_sure, bad_error, bad_sure = KINDS[kind]
    labels, common = random.integers(0, CLASSES, 3 * THIRD), random.random(3 * THIRD)
    errors = np.repeat([GOOD_ERROR, bad_error, GOOD_ERROR], THIRD)
    surety = np.repeat([1 - GOOD_ERROR, bad_sure, 1 - GOOD_ERROR], THIRD)
    predictions = []
    for error, sure in ((OWN_ERROR, np.full(3 * THIRD, own_sure)), (errors, surety)):
        wrong = np.where(random.random(3 * THIRD) < 0.5, common, random.random(3 * THIRD)) < error
        answers = np.where(wrong, (labels + random.integers(1, CLASSES, 3 * THIRD)) % CLASSES, labels)
        rest = ((1 - sure) / (CLASSES - 1))[:, None]
        predictions.append(rest + (sure[:, None] - rest) * np.eye(CLASSES)[answers])
    return np.stack(predictions), labels


def guarded(predictions: Array, labels: Labels, share: float, alarm: bool) -> tuple[Array, Array, OnlineGuard]:
    """Errors of what the guard used, errors expected of votes, and the guard in the end."""
    margin, delta = (MARGIN, DELTA) if alarm else (0.9, 1e-9)
    guard = OnlineGuard.start(STATIC, "first", margin=margin, delta=delta, share=share)
    lost = [[0.0, 0.0]]
    for t in range(len(labels)):
        if alarm and t % THIRD == 0 and t:
            guard.new_version(f"version {t // THIRD + 1}")
        guard.update(predictions[:, t : t + 1], labels[t : t + 1])
        lost.append(guard.record.losses[-2:])
    used, votes = np.diff(lost, axis=0).T
    return used, votes, guard


def compare(kind: str, streams: int) -> tuple[dict[str, Array], dict[str, Array], OnlineGuard, list[int]]:
    """Mean errors (strategies × thirds); the errors and the guard of the first stream; labels until the alarm."""
    every: dict[str, list[Array]] = {}
    first, until = {}, []
    for seed in range(streams):
        predictions, labels = stream(kind, np.random.default_rng(seed))
        wrong = predictions.argmax(2) != labels
        errors = {"own": wrong[0], "federated": wrong[1]}
        errors["static"] = np.tensordot(STATIC, predictions, 1).argmax(1) != labels
        errors["Bayes"], _, _ = guarded(predictions, labels, 0.0, alarm=False)
        errors["fixed share"], _, _ = guarded(predictions, labels, SHARE, alarm=False)
        errors["guard"], errors["votes"], guard = guarded(predictions, labels, SHARE, alarm=True)
        bad = guard.record.versions[1]
        until += [bad.alarm_at - bad.since] if bad.alarm_at is not None else []
        if seed == 0:
            first, kept = errors, guard
        for name, each in errors.items():
            every.setdefault(name, []).append(each.reshape(3, THIRD).mean(1))
    return {name: np.mean(each, 0) for name, each in every.items()}, first, kept, until


def crossings(streams: int, worse: float, better: float, seed: int) -> tuple[Array, Array]:
    """Labels until the alarm and until the certificate in each stream (infinity for never within 4,500).

    In use alone errs on a share ``worse`` of the samples, and the own model alone on a share ``better``.
    """
    random, found = np.random.default_rng(seed), []
    for _ in range(streams // 100):
        d = random.choice([1.0, -1.0, 0.0], (100, 3 * THIRD), p=[worse, better, 1 - worse - better])
        reached = [log_capital(each.cumsum(1)) >= -np.log(DELTA) for each in bets(d, MARGIN)]
        found.append([np.where(each.any(1), each.argmax(1) + 1.0, np.inf) for each in reached])
    alarm, certificate = np.concatenate(found, axis=1)
    return alarm, certificate


def e_processes(streams: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    cases = [(0.02, 0.0), (0.07, 0.05), (0.17, 0.15)]  # at the margin
    cases += [(0.1, 0.05), (0.15, 0.05), (0.25, 0.05), (0.6, 0.05)]  # worse
    cases += [(0.0, 0.0), (0.05, 0.05), (0.03, 0.05), (0.05, 0.1), (0.05, 0.15)]  # not worse
    for worse, better in cases:
        alarm, certificate = crossings(streams, worse, better, 1)
        row: dict[str, object] = {"in use alone errs": worse, "own alone errs": better}
        for name, each in (("alarm", alarm), ("certificate", certificate)):
            row[f"{name} %"] = f"{100 * np.isfinite(each).mean():.1f}"
            row[f"median labels to {name}"] = int(np.median(each)) if np.isfinite(np.median(each)) else ""
        rows.append(row)
    return rows


def picture(kept: dict[str, tuple[dict[str, Array], OnlineGuard]], file: Path) -> None:
    """One stream of each kind: errors, the weight of the own model, and the e-value of each version."""
    theme, window = themes()["light"], 200
    colours = {"own": theme["local"], "static": theme["harm"], "guard": theme["series"][0]}
    with style.context("comity.report.assets.paper"):
        figure = Figure(figsize=(7.0, 3.9), layout="constrained")
        for (left, middle, right), (kind, (errors, guard)) in zip(
            figure.subplots(len(kept), 3, sharex=True), kept.items(), strict=True
        ):
            for name, colour in colours.items():
                mean = np.convolve(errors[name], np.full(window, 1 / window), "valid")
                left.plot(np.arange(window, len(errors[name]) + 1), 100 * mean, label=name, color=colour)
            left.set(ylabel=f"errors, % of {window} labels", ylim=(0, 100))
            middle.set_title(f"bad model: {kind}", fontsize=8)
            history = guard.record.history
            places = [point.samples for point in history]
            middle.plot(places, [100 * point.weights[0] for point in history], color=theme["series"][0], linewidth=0.8)
            middle.set(ylabel="weight of the own model, %", ylim=(-3, 103))
            right.plot(places, [point.alarm / np.log(10) for point in history], color=theme["series"][0])
            right.axhline(-np.log10(DELTA), color=theme["harm"], linewidth=0.8, linestyle=(0, (4, 2.5)))
            right.text(60, -np.log10(DELTA) + 0.08, "alarm", color=theme["harm"], fontsize=7)
            right.set(ylabel=r"$\log_{10}$ e-value for harm", ylim=(-1.9, 1.9))
            for axes in (left, middle, right):
                axes.axvspan(THIRD, 2 * THIRD, color=theme["harm"], alpha=0.07, linewidth=0)
                axes.set_xlim(0, 3 * THIRD)
        left.legend(loc="upper left")
        figure.supxlabel("labels", fontsize=8)
        with atomically(file) as part:
            figure.savefig(part, format="png", dpi=160)


def write(file: Path, rows: list[dict[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(file, text.getvalue())
    print(text.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=20, help="with bad models")
    parser.add_argument("--bets", type=int, default=2000, help="of known differences")
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    kept = {}
    shares = {"Bayes": 0, "fixed share": SHARE, "guard": SHARE, "votes": SHARE}
    for kind in KINDS:
        mean, errors, guard, until = compare(kind, given.streams)
        kept[kind] = errors, guard
        for name, each in mean.items():
            thirds = {third: f"{100 * value:.1f}" for third, value in zip(THIRDS, each, strict=True)}
            row = {"bad model": kind, "in use": name, "share": shares.get(name, ""), **thirds}
            row |= {"all": f"{100 * each.mean():.1f}", "alarms": "", "median labels to alarm": ""}
            if name == "guard":
                row |= {"alarms": f"{len(until)} of {given.streams}"}
                row |= {"median labels to alarm": int(np.median(until)) if until else ""}
            rows.append(row)
    write(ROOT / "evidence" / "online-guard.csv", rows)
    write(ROOT / "evidence" / "online-guard-bets.csv", e_processes(given.bets))
    picture(kept, ROOT / "docs" / "images" / "online-guard.png")
