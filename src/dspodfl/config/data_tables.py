"""The table ``[data]`` and its partitions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dspodfl.config.tables import Count, NonNegative, Positive, Seed, Size, Table
from dspodfl.data.dataset import MAX_CLASSES


class Iid(Table):
    """Every client the same mix."""

    kind: Literal["iid"]


class Labels(Table):
    """Exactly ``per_client`` classes a client, balanced over the classes."""

    kind: Literal["labels"] = "labels"
    per_client: Count = 1
    allow_unused: bool = False


Alpha = Annotated[float, Field(ge=1e-9, le=1e9)]
"""Concentrations at whose ends one client has everything, or all have the same to the last sample."""


class Dirichlet(Table):
    """Each class dealt in Dirichlet(alpha) proportions."""

    kind: Literal["dirichlet"]
    alpha: Alpha


class Shards(Table):
    """Sorted by label, cut into equal pieces, ``per_client`` pieces a client."""

    kind: Literal["shards"]
    per_client: Count = 2


class Quantity(Table):
    """Every client the same mix, in Dirichlet(alpha) sizes."""

    kind: Literal["quantity"]
    alpha: Alpha


class Shared(Table):
    """Every client its own draw of ``samples`` samples, with overlap between clients."""

    kind: Literal["shared"]
    samples: Count


Partition = Annotated[Iid | Labels | Dirichlet | Shards | Quantity | Shared, Field(discriminator="kind")]


class DataTable(Table):
    """What every dataset may have besides its own parameters."""

    seed: Seed | None = None


class Partitioned(DataTable):
    """A dataset that is dealt to the clients."""

    partition: Partition = Labels()


class FmnistMini(Partitioned):
    """6,000 + 1,000 images of Fashion-MNIST, inside the package."""

    name: Literal["fmnist-mini"] = "fmnist-mini"


class Fmnist(Partitioned):
    """Fashion-MNIST."""

    name: Literal["fmnist"]


class Mnist(Partitioned):
    """MNIST."""

    name: Literal["mnist"]


class Cifar10(Partitioned):
    """CIFAR-10."""

    name: Literal["cifar10"]


class Synthetic(Partitioned):
    """Gaussian classes."""

    name: Literal["synthetic"]
    samples: Size = 6000
    test_samples: Size = 1000
    features: Size = 32
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] = 10
    separation: NonNegative = 2.0
    noise: Positive = 1.0


class Ridge(DataTable):
    """Linear regression with a known optimum, one sample set a client."""

    name: Literal["ridge"]
    samples: Size = 100
    test_samples: Size = 1000
    dimension: Size = 20
    heterogeneity: NonNegative = 1.0
    noise: NonNegative = 0.1
    l2: NonNegative = 0.1


class Npz(DataTable):
    """Your own: a folder of .npz files (x, y), one a client, and test.npz."""

    name: Literal["npz"]
    path: str


class CustomData(DataTable):
    """Arrays, torch Datasets or shards that were given in Python."""

    name: Literal["custom"]
    partition: Partition | None = Labels()  # null: the shards themselves were given


Data = Annotated[
    FmnistMini | Fmnist | Mnist | Cifar10 | Synthetic | Ridge | Npz | CustomData, Field(discriminator="name")
]
