"""Data sets, partitions and the federation: who holds which samples.

federation = federate(load("digits"), Dirichlet(alpha=0.1), clients=20, seed=0)
"""

from comity._datasets import DATASETS
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
from comity.data.partitions import PARTITIONS
from comity.data.partitions.base import Partition, Share
from comity.data.partitions.columns import ByColumn, Natural
from comity.data.partitions.labels import Dirichlet, LabelShift, Pathological
from comity.data.partitions.sizes import IID, Quantity, Rotated
from comity.data.sources.load import GIVEN, dataset_of, load
from comity.data.sources.synthetic import Synthetic
from comity.data.summary import describe

# fmt: off
__all__ = [
    # the federation
    "ClientData", "Federation", "Split", "describe", "federate", "fingerprint", "in_training_layout", "natural_clients",
    # data sets
    "DATASETS", "Dataset", "GIVEN", "Synthetic", "dataset_of", "load",
    # partitions
    "PARTITIONS", "ByColumn", "Dirichlet", "IID", "LabelShift", "Natural", "Partition", "Pathological", "Quantity",
    "Rotated", "Share",
]
# fmt: on
