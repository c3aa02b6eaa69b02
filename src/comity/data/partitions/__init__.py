"""Ways to share a data set out among clients, one file each."""

from comity.data.partitions.base import Partition
from comity.data.partitions.by_column import ByColumn
from comity.data.partitions.dirichlet import Dirichlet
from comity.data.partitions.iid import IID, Quantity
from comity.data.partitions.label_shift import LabelShift
from comity.data.partitions.natural import Natural
from comity.data.partitions.pathological import Pathological
from comity.data.partitions.rotated import Rotated

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
