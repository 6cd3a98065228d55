"""Datasets, where they come from, and how their samples are dealt to the clients."""

from dspodfl.data import partitions
from dspodfl.data.dataset import Dataset, Federation, parts
from dspodfl.data.npz import load_npz
from dspodfl.data.partitions import Partition
from dspodfl.data.sources import NAMES, load
from dspodfl.data.synthetic import ridge, synthetic

__all__ = [
    "NAMES",
    "Dataset",
    "Federation",
    "Partition",
    "load",
    "load_npz",
    "partitions",
    "parts",
    "ridge",
    "synthetic",
]
