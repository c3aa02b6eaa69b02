"""Smartwatch recordings of 20 arms, from the package seglearn."""

from pathlib import Path

import numpy as np

from comity.data._dataset import Dataset
from comity.data.sources.npz import read_header
from comity.data.sources.reading import Budget, reading
from comity.data.sources.unpickle import arrays_of, as_array, unpickle_object

WINDOW = 100
"""Samples per window at 50 Hz: two seconds. Every second sample is used: 25 Hz."""


def read_watch(name: str, path: Path, budget: Budget) -> Dataset | None:
    """Windows of 140 recordings, 10 people × 2 arms × 7 shoulder exercises (Burns et al., 2018); one client per arm."""
    if path.name != "watch_dataset.npy":
        return None
    with reading(path):
        budget.check(4 * path.stat().st_size, path)
        with path.open("rb") as file:
            file.seek(read_header(file, path)[-1])
            data = unpickle_object(file.read(), path)
        names = [str(name) for name in data["y_labels"]]
        recordings = [as_array(recording, path, "X") for recording in data["X"]]
        exercise, subject, right = arrays_of(data, path, "y", "subject", "side")
        x, y, client = [], [], []
        for k, recording in enumerate(recordings):
            count = (len(recording) - 1) // WINDOW
            windows = recording[: count * WINDOW].reshape(count, WINDOW, -1)
            x.append(windows[:, ::2].transpose(0, 2, 1))
            y += [int(exercise[k])] * count
            client += [f"{int(subject[k]):02} {'right' if right[k] else 'left'}"] * count
    notes = (f"{name}: each arm of each person is a client",)
    return Dataset(name, np.concatenate(x), np.array(y), len(names), {"client": np.array(client)}, names, notes=notes)
