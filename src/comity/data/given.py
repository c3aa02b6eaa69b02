"""Data that Python gave: arrays, a data frame, or a federation."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from comity._datasets import DataFiles
from comity._errors import ComityError, one_line
from comity.data._dataset import Dataset
from comity.data.federation import Federation
from comity.data.sources.reading import Budget
from comity.data.sources.table import table_of

NAME = "given"
"""What such data are called in a configuration."""


def dataset_of(data: Any, options: Mapping[str, Any]) -> Dataset | Federation:
    """From ``(x, y)`` or ``(x, y, client)``, a data frame or a mapping of columns, a data set or a federation.

    ``options`` are those of a table: target, client, missing.
    """
    if isinstance(data, Dataset | Federation):
        return data
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        x, y, *client = data
        return Dataset(NAME, x, y, columns={"client": np.asarray(client[0])} if client else {})
    names = data.keys() if isinstance(data, Mapping) else getattr(data, "columns", None)
    if names is None:
        raise ComityError(
            "data must be a name, (x, y), (x, y, client), a data frame, a Dataset or a Federation, got "
            + one_line(repr(data), 80)
        )
    return table_of(NAME, {str(name): list(data[name]) for name in names}, DataFiles(**options), Budget())
