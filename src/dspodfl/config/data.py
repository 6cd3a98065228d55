"""The table ``[data]`` and its partitions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dspodfl.config.base import Count, NonNegative, Positive, Seed, Size, Table
from dspodfl.problem.data import MAX_CLASSES

PartitionKind = Field(description="how the training samples are dealt to the clients")
DataName = Field(description="the dataset")
PARTITION = "how the training samples are dealt to the clients"


class Iid(Table):
    """Each client the same mix of classes and the same number of samples."""

    kind: Annotated[Literal["iid"], PartitionKind]


class Labels(Table):
    """Exactly ``per_client`` classes per client, each class split evenly among its holders."""

    kind: Annotated[Literal["labels"], PartitionKind] = "labels"
    per_client: Count = Field(1, description="classes per client")
    allow_unused: bool = Field(False, description="true: a class that no client holds is left out, and reported")


Alpha = Annotated[float, Field(ge=1e-9, le=1e9)]
"""Concentrations at whose ends one client has everything, or all have the same to the last sample."""


class Dirichlet(Table):
    """Each class dealt in Dirichlet(alpha) proportions."""

    kind: Annotated[Literal["dirichlet"], PartitionKind]
    alpha: Alpha = Field(description="the concentration; small values make clients unlike", examples=[0.3])


class Shards(Table):
    """Sorted by label and cut into equal pieces, ``per_client`` of them per client."""

    kind: Annotated[Literal["shards"], PartitionKind]
    per_client: Count = Field(2, description="pieces per client")


class Quantity(Table):
    """Each client the same mix of classes, in Dirichlet(alpha) sizes."""

    kind: Annotated[Literal["quantity"], PartitionKind]
    alpha: Alpha = Field(description="the concentration; small values make sizes unlike", examples=[0.5])


class Shared(Table):
    """Each client its own draw of samples: the only kind in which clients overlap."""

    kind: Annotated[Literal["shared"], PartitionKind]
    samples: Count = Field(description="samples per client", examples=[500])


Partition = Annotated[Iid | Labels | Dirichlet | Shards | Quantity | Shared, Field(discriminator="kind")]


class DataTable(Table):
    """What every dataset may have besides its own parameters."""

    seed: Seed | None = Field(
        None,
        description="draw the partition, and synthetic data, with this seed for all seeds of the study",
        examples=[1],
    )


class Partitioned(DataTable):
    """A dataset that is dealt to the clients."""

    partition: Partition = Field(Labels(), description=PARTITION)


class FmnistMini(Partitioned):
    """6,000 + 1,000 images of Fashion-MNIST, inside the package."""

    name: Annotated[Literal["fmnist-mini"], DataName] = "fmnist-mini"


class Fmnist(Partitioned):
    """Fashion-MNIST, 60,000 + 10,000 images; found in $DSPODFL_DATA or a cache, else downloaded."""

    name: Annotated[Literal["fmnist"], DataName]


class Mnist(Partitioned):
    """MNIST, 60,000 + 10,000 images; found or downloaded."""

    name: Annotated[Literal["mnist"], DataName]


class Cifar10(Partitioned):
    """CIFAR-10, 50,000 + 10,000 colour images; found or downloaded."""

    name: Annotated[Literal["cifar10"], DataName]


class Synthetic(Partitioned):
    """Gaussian classes, drawn for each seed."""

    name: Annotated[Literal["synthetic"], DataName]
    samples: Size = Field(6000, description="training samples")
    test_samples: Size = Field(1000, description="test samples")
    features: Size = Field(32, description="numbers per sample")
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] = Field(10, description="number of classes")
    separation: NonNegative = Field(2.0, description="how far the means of the classes are apart")
    noise: Positive = Field(1.0, description="the standard deviation within a class")


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


Data = Annotated[
    FmnistMini | Fmnist | Mnist | Cifar10 | Synthetic | Ridge | Npz | CustomData, Field(discriminator="name")
]
