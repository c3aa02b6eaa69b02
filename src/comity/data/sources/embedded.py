"""The data sets that are part of comity; their sources and licences are in digits.txt and heart.txt."""

from pathlib import Path
from typing import Literal

import numpy as np

from comity._datasets import DataFiles
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget
from comity.data.sources.table import read_table

DIGITS, HEART = (Path(__file__).with_name(name) for name in ("digits.npz", "heart.csv"))


def read_digits() -> Dataset:
    """1,797 handwritten digits, 8×8 grey pixels (Alpaydin and Kaynak, UCI 1998)."""
    with np.load(DIGITS) as file:
        pixels = np.round(file["pixels"] * (255 / 16)).astype(np.uint8)
        return Dataset("digits", pixels, file["labels"], classes=10)


def read_heart(missing: Literal["mean", "marked"] = "mean") -> Dataset:
    """920 patients; client: one of four hospitals; target: coronary artery disease (Detrano et al., UCI 1989).

    Options:
        missing: a missing value becomes the mean of the training samples; `marked` also adds a feature that marks it,
            which identifies the hospital, because each one left out other examinations
    """
    return read_table("heart", HEART, Budget(), DataFiles(target="disease", client="hospital", missing=missing))
