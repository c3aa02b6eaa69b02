"""Data sets, partitions and the federation: who holds which samples.

federation = federate(load("digits"), Dirichlet(alpha=0.1), clients=20, seed=0)
"""

from comity._datasets import DATASETS, DatasetInfo
from comity.data._dataset import Dataset
from comity.data.federation import (
    ClientData,
    Federation,
    Split,
    federate,
    fingerprint,
    in_training_layout,
    natural_clients,
)
from comity.data.given import NAME as GIVEN
from comity.data.given import dataset_of
from comity.data.partitions import PARTITIONS
from comity.data.partitions.base import Partition, Share
from comity.data.partitions.by_column import ByColumn
from comity.data.partitions.dirichlet import Dirichlet
from comity.data.partitions.iid import IID, Quantity
from comity.data.partitions.label_shift import LabelShift
from comity.data.partitions.natural import Natural
from comity.data.partitions.pathological import Pathological
from comity.data.partitions.rotated import Rotated, Rotation
from comity.data.sources.load import load
from comity.data.sources.synthetic import Synthetic
from comity.data.summary import describe

__all__ = [
    # the federation
    "ClientData",
    "Federation",
    "Split",
    "describe",
    "federate",
    "fingerprint",
    "in_training_layout",
    "natural_clients",
    # data sets
    "DATASETS",
    "Dataset",
    "DatasetInfo",
    "GIVEN",
    "Synthetic",
    "dataset_of",
    "load",
    # partitions
    "PARTITIONS",
    "ByColumn",
    "Dirichlet",
    "IID",
    "LabelShift",
    "Natural",
    "Partition",
    "Pathological",
    "Quantity",
    "Rotated",
    "Rotation",
    "Share",
]
