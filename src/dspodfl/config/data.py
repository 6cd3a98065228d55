"""The table ``[data]`` and its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dspodfl.config.base import NonNegative, Seed, Size, Table
from dspodfl.config.kinds import one_of, tables
from dspodfl.problem.data import DATASETS, PARTITIONS

PartitionKind = Field(description="how the training samples are assigned to the clients")
DataName = Field(description="the dataset")
PARTITION = "how the training samples are assigned to the clients"


class PartitionTable(Table):
    """How the training samples are assigned to the clients."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which kind it is."""
            ...


KINDS = tables(PARTITIONS, PartitionTable, "kind", PartitionKind, default="labels")
"""The table of each kind of `dspodfl.problem.data.PARTITIONS`."""
globals().update({table.__name__: table for table in KINDS.values()})
Labels = KINDS["labels"]

if TYPE_CHECKING:
    Partition = PartitionTable
else:
    Partition = one_of("kind", *KINDS.values())


class DataTable(Table):
    """What every dataset may have besides its own parameters."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Which dataset it is."""
            ...

    seed: Seed | None = Field(
        None,
        description="draw the partition, and synthetic data, with this seed for all seeds of the study",
        examples=[1],
    )


class Partitioned(DataTable):
    """A dataset that is assigned to the clients."""

    partition: Partition = Field(Labels(), description=PARTITION)


NAMED = tables(DATASETS, Partitioned, "name", DataName, default="fmnist-mini")
"""The table of each dataset of `dspodfl.problem.data.DATASETS`."""
globals().update({table.__name__: table for table in NAMED.values()})
FmnistMini = NAMED["fmnist-mini"]


class Ridge(DataTable):
    """Linear regression with a known optimum, drawn for each client; the model is linear."""

    name: Annotated[Literal["ridge"], DataName]
    samples: Size = Field(100, description="training samples per client")
    test_samples: Size = Field(1000, description="test samples")
    dimension: Size = Field(20, description="numbers per sample")
    heterogeneity: NonNegative = Field(1.0, description="how far the optima of the clients are apart")
    noise: NonNegative = Field(0.1, description="the standard deviation of the noise in the targets")
    l2: NonNegative = Field(0.1, description="the L2 penalty of the objective")


class Npz(DataTable):
    """Your own data: a folder of .npz files with arrays x and y, one per client, and test.npz."""

    name: Annotated[Literal["npz"], DataName]
    path: str = Field(description="the folder", examples=["folder"])


class CustomData(DataTable):
    """Data that were given in Python: ``run(config, data=…)``."""

    name: Annotated[Literal["custom"], DataName]
    partition: Partition | None = Field(Labels(), description=f"{PARTITION}; null: each client's data were given")


if TYPE_CHECKING:
    Data = DataTable
else:
    Data = one_of("name", *NAMED.values(), Ridge, Npz, CustomData)
