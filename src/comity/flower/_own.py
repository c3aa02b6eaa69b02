"""A site's own data, instead of its part of the configured federation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from logging import ERROR
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.supercore import log

from comity._errors import ComityError
from comity.config import CLIENTS, Config
from comity.data import (
    ClientData,
    Federation,
    Preprocessing,
    Scaler,
    Schema,
    SiteTable,
    Split,
    read_schema,
    site_federation,
)

SCHEMA = "schema.yaml"
"""Name of the common schema in an app, beside its code."""


class SiteData(ABC):
    """The data of one machine: the samples of one client at a site, none on the server."""

    def client(self, context: Context) -> int:
        """The client of this node."""
        return partition_id(context)

    @abstractmethod
    def federation(self, config: Config) -> Federation:
        """All clients without samples, as the server sees them."""

    @abstractmethod
    def at(self, context: Context, config: Config, along: Sequence[float]) -> Federation:
        """All clients, with samples only for this node's; ``along`` is what the server sent with a question."""


@dataclass(frozen=True)
class OwnData(SiteData):
    """A site's own data instead of the configured federation.

    All sites must agree on ``shape`` (features; channels, time; or channels, height, width) and ``classes``, so that
    they have the same model. ``load`` is called where the data is, with Flower's context of that node.
    """

    shape: tuple[int, ...]
    classes: int
    load: Callable[[Context], ClientData]

    def federation(self, config: Config) -> Federation:
        nothing = Split(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64))
        members = [ClientData(cid, nothing, nothing, nothing) for cid in range(config.clients or CLIENTS)]
        as_given = Preprocessing(self.shape)
        return Federation(
            "own data", self.shape, self.classes, tuple(members), 0, "each site's own", preprocessing=as_given
        )

    def at(self, context: Context, config: Config, along: Sequence[float]) -> Federation:
        everyone, cid = self.federation(config), self.client(context)
        members = list(everyone.clients)
        members[cid] = replace(self.load(context), id=cid)
        return replace(everyone, clients=tuple(members))


@dataclass(frozen=True)
class Tables(SiteData):
    """Tables that fit a common schema: a node needs only ``--node-config "data='/srv/patients.csv'"``.

    The client is read from the table, or from ``client='...'`` in the node configuration.
    """

    file: Path
    """The schema file (from `comity schema`)."""

    @cached_property
    def schema(self) -> Schema:
        schema = read_schema(self.file)
        if not schema.clients:
            raise ComityError(f"{self.file}: the schema must name its clients")
        return schema

    def federation(self, config: Config) -> Federation:
        return site_federation(self.schema, seed=config.seed, test_share=config.test_share, val_share=config.val_share)

    def client(self, context: Context) -> int:
        return self._table(context).id

    def at(self, context: Context, config: Config, along: Sequence[float]) -> Federation:
        known = np.array(along).reshape(2, -1) if along else None
        if known is not None and known.shape[1] != len(self.schema.features):
            raise ComityError("the server sent means and spreads of other features than the schema's")
        return site_federation(
            self.schema,
            seed=config.seed,
            test_share=config.test_share,
            val_share=config.val_share,
            mine=self._table(context),
            scaler=None if known is None else Scaler(*known),
        )

    def _table(self, context: Context) -> SiteTable:
        """The node's table. Errors appear only in the node's log, because they may contain values of rows."""
        node = context.node_config
        try:
            if "data" not in node:
                raise ComityError("this node needs its table: --node-config \"data='/srv/patients.csv'\"")
            path, named = Path(str(node["data"])).expanduser(), node.get("client")
            about = path.stat()
            table = _read(path, self.file, None if named is None else str(named), about.st_mtime_ns, about.st_size)
            if node.get("partition-id", table.id) != table.id:
                raise ComityError(f"partition-id is {node['partition-id']}, but the table is of client {table.id}")
            return table
        except (ComityError, OSError) as error:
            log(ERROR, "This site takes no part: %s", error)
            raise ComityError("its table cannot be used; the log of its SuperNode says why") from None


@lru_cache(maxsize=64)
def _read(path: Path, schema: Path, named: str | None, *_: int) -> SiteTable:
    """Read a table once, even if a process serves many messages."""
    return SiteTable.read(path, schema, named)


def partition_id(context: Context) -> int:
    """The client that this node claims to be."""
    if "partition-id" not in context.node_config:
        raise ComityError('this node does not say which client it is; start it with --node-config "partition-id=0"')
    cid = context.node_config["partition-id"]
    if type(cid) is not int or cid < 0:
        raise ComityError(f"partition-id must be a whole number from 0 on, got {cid!r}")
    return cid
