"""Partitions: ways to divide a data set among clients."""

from comity.data.partitions.base import Partition
from comity.data.partitions.columns import ByColumn, Natural
from comity.data.partitions.labels import Dirichlet, LabelShift, Pathological
from comity.data.partitions.sizes import IID, Quantity, Rotated

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "pathological": Pathological,
    "dirichlet": Dirichlet,
    "rotated": Rotated,
    "label-shift": LabelShift,
    "quantity": Quantity,
    "by-column": ByColumn,
    "natural": Natural,
}
