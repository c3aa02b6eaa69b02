"""How often ``comity ask`` names a site wrongly, and how often it finds a fault that was put in.

Natural federations as they are show false alarms. Then one site at a time gets one fault: a column times a factor, in
°F, shifted by 3 or 5 interquartile ranges, two columns exchanged, or two classes exchanged. A fault is found if the
site, the kind and the columns or classes are named.

    python benchmarks/ask_faults.py
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ask import NAMES, Row, options, write
from comity.config import Config
from comity.data import Dataset, federate
from comity.engine import RunPlan
from comity.probe import _disagreement as disagreement
from comity.probe import findings
from comity.probe._disagreement import LEAST_OF_CLASS, Summary
from comity.probe._logistic import Rows

Array = NDArray[np.float64]
FACTORS = (10.0, 100.0, 1000.0, 2.54, 0.4536)
COLUMNS: dict[str, tuple[str, Callable[[Array, float], Array]]] = {
    **{f"× {factor:g}": ("unit", lambda x, _, factor=factor: x * factor) for factor in FACTORS},
    "°C to °F": ("unit", lambda x, _: 1.8 * x + 32),
    "+ 3 IQR": ("shift", lambda x, width: x + 3 * width),
    "+ 5 IQR": ("shift", lambda x, width: x + 5 * width),
}
KINDS = ("unit", "shift", "exchange", "labels", "site")
SITES, LABELLED = 8, 4
"""Sites of each federation that get faults: in columns, and in classes."""
SLOW = ("digit_writers", "shakespeare", "spoken_digits")
"""Of these one site gets exchanged classes."""


def federations() -> Iterator[tuple[str, Dataset]]:
    """Those of the leaderboard, under its conditions."""
    for name in NAMES:
        found = RunPlan(Config.of(options(name))).dataset
        assert isinstance(found, Dataset)
        yield name, found


def alarms() -> Iterator[Row]:
    for name, dataset in federations():
        federation = federate(dataset, seed=0)
        found = list(findings(federation, dataset))
        named = len({finding.client for finding in found})
        print(name, *found, sep="\n  ", flush=True)
        row: Row = {"federation": name, "sites": len(federation), "sites named": named}
        yield row | {kind: sum(each.kind == kind for each in found) for kind in KINDS}


def faults() -> Iterator[Row]:
    for name, dataset in federations():
        tally: dict[str, list[bool]] = {}
        for fault, hit in (*_columns(dataset), *_classes(name, dataset)):
            tally.setdefault(fault, []).append(hit)
        for fault, hits in tally.items():
            yield {"federation": name, "fault": fault, "put in": len(hits), "found": sum(hits)}
        print(name, {fault: f"{sum(hits)}/{len(hits)}" for fault, hits in tally.items()}, flush=True)


def _columns(dataset: Dataset) -> Iterator[tuple[str, bool]]:
    if dataset.x.ndim != 2 or dataset.owner is None:
        return
    random, names = np.random.default_rng(1), np.unique(dataset.owner).astype(str).tolist()
    parts = [dataset.x[dataset.owner.astype(str) == name].astype(np.float64) for name in names]
    sites = [Summary.of(part) for part in parts]
    labels = [str(j) for j in range(dataset.x.shape[1])]
    for c in random.permutation(len(sites))[:SITES].tolist():
        width = sites[c].quartiles[2] - sites[c].quartiles[0]
        usable = np.flatnonzero(width > 0)

        def found(changed: Array, kind: str, *columns: int, c: int = c) -> bool:
            trial = [*sites[:c], Summary.of(changed), *sites[c + 1 :]]
            wanted = names[c], kind, tuple(labels[j] for j in sorted(columns))
            return any((f.client, f.kind, f.what) == wanted for f in disagreement.columns(trial, names, labels, c))

        for fault, (kind, change) in COLUMNS.items():
            for j in random.permutation(usable)[:2].tolist():
                changed = parts[c].copy()
                changed[:, j] = change(changed[:, j], width[j])
                yield fault, found(changed, kind, j)
        for _ in range(2 if len(usable) > 1 else 0):
            i, j = random.permutation(usable)[:2].tolist()
            changed = parts[c].copy()
            changed[:, [i, j]] = changed[:, [j, i]]
            yield "two columns exchanged", found(changed, "exchange", i, j)


def _classes(name: str, dataset: Dataset) -> Iterator[tuple[str, bool]]:
    random, federation = np.random.default_rng(1), federate(dataset, seed=0)
    sites = [Rows.of(client.train, client.test) for client in federation.clients]
    for c in random.permutation(len(sites))[: 1 if name in SLOW else LABELLED].tolist():
        held = np.flatnonzero(np.bincount(sites[c].y) >= LEAST_OF_CLASS)
        if len(held) < 2:
            continue
        pair = random.permutation(held)[:2]
        new = np.arange(federation.classes)
        new[pair] = pair[::-1]
        trial = [*sites[:c], Rows(sites[c].x, new[sites[c].y]), *sites[c + 1 :]]
        wanted = federation.client_names[c], {federation.class_names[k] for k in pair}
        named = disagreement.classes(trial, federation.client_names, federation.class_names, c)
        yield "two classes exchanged", any((f.client, set(f.what)) == wanted for f in named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("alarms", "faults", "both"), default="both")
    what = parser.parse_args().what
    if what != "faults":
        write("ask-alarms.csv", alarms())
    if what != "alarms":
        write("ask-faults.csv", faults())


if __name__ == "__main__":
    main()
