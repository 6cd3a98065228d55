"""Datasets, where they come from, and how their samples are dealt to the clients."""

from dspodfl.problem.data import partitions
from dspodfl.problem.data.dataset import Dataset, Federation, parts
from dspodfl.problem.data.named import NAMES, load
from dspodfl.problem.data.npz import load_npz
from dspodfl.problem.data.partitions import Partition
from dspodfl.problem.data.synthetic import ridge, synthetic

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
