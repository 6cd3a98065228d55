from . import partitions as partitions
from .coerce import as_data as as_data
from .coerce import with_channel_axis as with_channel_axis
from .dataset import MAX_CLASSES as MAX_CLASSES
from .dataset import Dataset as Dataset
from .dataset import Federation as Federation
from .dataset import restrict_to_clients as restrict_to_clients
from .downloads import downloading as downloading
from .named import DATASETS as DATASETS
from .named import load as load
from .npz import load_npz as load_npz
from .partitions import PARTITIONS as PARTITIONS
from .partitions import Partition as Partition
from .stored_rows import StoredRows as StoredRows
from .stored_rows import samples_on_demand as samples_on_demand
from .synthetic import ridge as ridge
from .synthetic import synthetic as synthetic

__all__ = [
    "DATASETS",
    "MAX_CLASSES",
    "PARTITIONS",
    "Dataset",
    "Federation",
    "Partition",
    "StoredRows",
    "as_data",
    "downloading",
    "load",
    "load_npz",
    "partitions",
    "restrict_to_clients",
    "ridge",
    "samples_on_demand",
    "synthetic",
    "with_channel_axis",
]
