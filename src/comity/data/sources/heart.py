"""Four hospitals, the natural federation that comes with comity."""

from pathlib import Path
from typing import Literal

from comity._datasets import DataFiles
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget
from comity.data.sources.table import read_table

FILE = Path(__file__).with_name("heart.csv")  # its source, its licence and what was changed are in heart.txt


def read_heart(missing: Literal["mean", "marked"] = "mean") -> Dataset:
    """920 patients of four hospitals, each a client; is an artery of the heart narrowed? (Detrano et al., UCI 1989).

    Options:
        missing: a missing value stands at the mean of the training samples; `marked` adds a feature that says so, by
            which a model knows the hospital, since each left out other examinations
    """
    return read_table("heart", FILE, Budget(), DataFiles(target="disease", client="hospital", missing=missing))
