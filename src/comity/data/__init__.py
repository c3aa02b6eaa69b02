"""Data sets, partitions and the federation: who holds which samples.

federation = federate(load("digits"), Dirichlet(alpha=0.1), clients=20, seed=0)
"""

from comity._datasets import DATASETS, SITES
from comity._federations import natural
from comity._natural import NaturalFederation
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
from comity.data.merge import Disagreement, merge_schemas
from comity.data.partitions import PARTITIONS
from comity.data.partitions.base import Partition, Share
from comity.data.partitions.columns import ByColumn, Natural
from comity.data.partitions.labels import Dirichlet, LabelShift, Pathological
from comity.data.partitions.sizes import IID, Quantity, Rotated
from comity.data.preprocessing import Moments, Preprocessing, Scaler
from comity.data.schema import Column, Encoded, Problem, Schema, is_blank, labels
from comity.data.schema_file import read_schema, schema_text
from comity.data.sites import SiteTable, site_federation
from comity.data.sources.columns import Columns, read_columns
from comity.data.sources.infer import MIN_COUNT
from comity.data.sources.load import GIVEN, dataset_of, load
from comity.data.sources.samples import NewSamples, read_samples
from comity.data.sources.synthetic import Synthetic
from comity.data.sources.table import check_table, site_schema
from comity.data.summary import describe

# fmt: off
__all__ = [
    # the federation
    "ClientData", "Federation", "Split", "describe", "federate", "fingerprint", "in_training_layout", "natural_clients",
    # data sets
    "DATASETS", "Dataset", "GIVEN", "NaturalFederation", "Synthetic", "dataset_of", "load", "natural",
    # tables that stay on their sites' machines
    "MIN_COUNT", "SITES", "SiteTable", "site_federation",
    # new samples without labels
    "NewSamples", "read_samples",
    # tables and preprocessing
    "Column", "Encoded", "Moments", "Preprocessing", "Problem", "Scaler", "Schema", "is_blank", "labels",
    "Columns", "Disagreement", "check_table", "merge_schemas", "read_columns", "read_schema", "schema_text",
    "site_schema",
    # partitions
    "PARTITIONS", "ByColumn", "Dirichlet", "IID", "LabelShift", "Natural", "Partition", "Pathological", "Quantity",
    "Rotated", "Share",
]
# fmt: on
