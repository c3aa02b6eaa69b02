"""A federation whose tables stay at their sites: each machine sees the samples of at most one client.

Splits and features are bit-identical to a rehearsal with all tables in one file.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch

from comity._errors import ComityError, one_line
from comity.data._dataset import Dataset
from comity.data.federation import ClientData, Federation, Split, client_data, fingerprint, folds_for, split_share
from comity.data.partitions.base import Share
from comity.data.partitions.columns import Natural
from comity.data.preprocessing import Preprocessing, Scaler
from comity.data.schema import Schema, labels
from comity.data.schema_file import read_schema
from comity.data.sources.load import load
from comity.data.sources.table import check_table


@dataclass(frozen=True)
class SiteTable:
    """The table of one client."""

    id: int
    dataset: Dataset

    @classmethod
    def read(cls, path: Path, schema: Path, named: str | None = None) -> "SiteTable":
        """Read a table with the schema in a file; reject it if a cell does not fit."""
        agreed = read_schema(schema)
        checked = check_table(path, agreed)
        if checked.lacking:
            raise ComityError(f"{path} lacks {', '.join(checked.lacking)} of the schema")
        if checked.problems:
            raise ComityError(
                f"{path}: {checked.bad_rows:,} of {checked.rows:,} rows do not fit the schema; {checked.problems[0]}"
            )
        found = load(str(path), schema=str(schema))
        assert isinstance(found, Dataset)
        return cls.of(found, agreed, named)

    @classmethod
    def of(cls, dataset: Dataset, schema: Schema, named: str | None = None) -> "SiteTable":
        """Determine the client of ``schema`` that the rows belong to; ``named`` is the site's own claim."""
        given = {str(name) for name in np.unique(dataset.columns.get("client", []))}
        given |= set() if named is None else {labels(schema.clients)(named)}
        known = ", ".join(schema.clients)
        if not given:
            raise ComityError(f"which client is this? Its table has no column {schema.client}; one of {known}")
        if len(given) > 1:
            raise ComityError(f"a site's table is of one client, got {', '.join(sorted(given))}")
        (name,) = given
        if name not in schema.clients:
            raise ComityError(f"unknown client {one_line(name, 40)}; the schema has {known}")
        return cls(schema.clients.index(name), dataset)

    def samples(self, prepare: Preprocessing, seed: int, test_share: float, val_share: float) -> ClientData:
        """Split like ``federate`` splits this client's rows in a file of all clients."""
        share, folds = Share(np.arange(len(self.dataset))), folds_for(test_share)
        splits = split_share(self.id, share, self.dataset, seed, test_share, val_share, folds)
        return client_data(self.id, self.dataset, share, splits, prepare)


def site_federation(
    schema: Schema,
    *,
    seed: int,
    test_share: float,
    val_share: float,
    mine: SiteTable | None = None,
    scaler: Scaler | None = None,
) -> Federation:
    """The clients of ``schema`` as one machine sees them: its own samples if it is a site, and no others.

    Without ``scaler`` the samples are unscaled, in summation order and without a validation split: the input of the
    sums.
    """
    prepare = Preprocessing((len(schema.features),), scaler, schema=schema)
    nothing = Split(torch.empty(0, *prepare.shape), torch.empty(0, dtype=torch.int64))
    clients = [ClientData(cid, nothing, nothing, nothing) for cid in range(len(schema.clients))]
    if mine is not None:
        clients[mine.id] = mine.samples(prepare, seed, test_share, 0.0 if scaler is None else val_share)
    federation = Federation(
        name="tables at their sites",
        shape=prepare.shape,
        classes=len(schema.classes),
        clients=tuple(clients),
        seed=seed,
        partition=str(Natural()),
        client_names=schema.clients,
        class_names=schema.classes,
        tests_drawn=True,
        folds=folds_for(test_share),
        known_imbalance="",
        preprocessing=prepare,
    )
    of_schema = hashlib.sha256(msgspec.json.encode(schema)).hexdigest()[:16]
    vars(federation)["fingerprint"] = of_schema if mine is None else fingerprint(mine.dataset)
    return federation
