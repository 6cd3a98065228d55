"""What the clients learn from: one dataset, and how its training samples are divided among them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from dspodfl.errors import DataError
from dspodfl.problem.data.stored_rows import StoredRows

_SHARDS_PER_CHECK = 4096
MAX_CLASSES = 2**16
"""Labels are 0 … classes − 1, and a model has a score for each: a label beyond this is an identifier, not a class."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples as they are stored, and the affine map that makes them a model's input.

    input = scale · x + shift, in float32 (`normalized`)

    Attributes:
        name: What errors and results call it.
        x_train: Training samples, shape (samples, *input_shape), uint8 or float32; inside `samples_on_demand` those of
            named datasets and of folders are `StoredRows`, which are checked for finite values when they are read.
        y_train: Their labels in [0, classes), int64, or their targets, float32; shape (samples,).
        x_test: Test samples, as x_train.
        y_test: Their labels or targets.
        classes: The number of classes; None: a regression.
        scale: See above.
        shift: See above.
        class_names: The names of the classes.
        about: What a reader of results should know of where the samples come from.

    Raises:
        DataError: Shapes, types or values do not fit.

    >>> x = np.arange(8, dtype=np.uint8).reshape(4, 2)
    >>> data = Dataset.from_arrays(x, [0, 1, 2, 0], x[:1], [0])
    >>> data.input_shape, data.outputs
    ((2,), 3)
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int | None
    scale: float = 1.0
    shift: float = 0.0
    class_names: tuple[str, ...] | None = None
    about: Mapping[str, object] = field(default_factory=dict)
    """What a reader of results should know of where the samples come from."""

    def __post_init__(self) -> None:
        if self.classes is not None and self.classes < 1:
            raise DataError(f"{self.name}: {self.classes} classes; at least 1 is needed")
        if self.classes is not None and self.classes > MAX_CLASSES:
            raise DataError(
                f"{self.name}: labels up to {self.classes - 1} make {self.classes:,} classes; at most "
                f"{MAX_CLASSES:,} are allowed: number the classes 0, 1, 2, …"
            )
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise DataError(f"{self.name}: {len(self.class_names)} class names for {self.classes} classes")
        if not np.isfinite([self.scale, self.shift]).all():
            raise DataError(f"{self.name}: scale {self.scale} and shift {self.shift} must be finite")
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            self._check_part(part, x, y)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: a sample of x_train has shape {self.x_train.shape[1:]}, "
                f"one of x_test {self.x_test.shape[1:]}; they must be the same"
            )
        if self.x_train.dtype != self.x_test.dtype:
            raise DataError(f"{self.name}: x_train is {self.x_train.dtype}, x_test is {self.x_test.dtype}")

    def _check_part(self, part: str, x: Any, y: np.ndarray) -> None:
        here = f"{self.name}: x_{part}"
        if x.dtype not in (np.uint8, np.float32):
            raise DataError(f"{here} is {x.dtype}; it must be uint8 or float32")
        if x.ndim < 2 or x.size == 0:
            raise DataError(f"{here} has shape {x.shape}; it must be (samples, *shape), with at least one sample")
        if y.shape != x.shape[:1]:
            raise DataError(f"{here} has {len(x)} samples, y_{part} has shape {y.shape}; it must be ({len(x)},)")
        if x.dtype == np.float32 and not isinstance(x, StoredRows) and not np.isfinite(x).all():
            raise DataError(f"{here} has values that are not finite")
        here = f"{self.name}: y_{part}"
        if self.classes is None:
            if y.dtype != np.float32 or not np.isfinite(y).all():
                raise DataError(f"{here} is {y.dtype}; the targets of a regression must be finite float32")
        elif y.dtype != np.int64 or y.min() < 0 or y.max() >= self.classes:
            raise DataError(
                f"{here} is {y.dtype} in [{y.min()}, {y.max()}]; labels must be int64 in [0, {self.classes - 1}]"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample; images are (channels, height, width)."""
        return tuple(self.x_train.shape[1:])

    @property
    def on_demand(self) -> bool:
        """Whether the training samples are in files, of which rows are read when they are taken."""
        x: Any = self.x_train
        return isinstance(x, StoredRows)

    @property
    def outputs(self) -> int:
        """Numbers a model gives for a sample: one score a class, or one prediction."""
        return 1 if self.classes is None else self.classes

    def normalized(self, x: np.ndarray) -> np.ndarray:
        """Return samples as a model's input, scale · x + shift. Shapes: (..., *shape) -> the same, float32."""
        return np.asarray(x).astype(np.float32) * np.float32(self.scale) + np.float32(self.shift)

    @classmethod
    def from_arrays(cls, x_train: Any, y_train: Any, x_test: Any, y_test: Any, name: str = "arrays") -> Self:
        """Make a dataset from NumPy arrays, torch tensors or lists.

        Integer y are labels (classes = largest + 1), floating y are targets of a regression. Bytes stay bytes and are
        scaled by 1/255; all other x become float32.

        Args:
            x_train: Training samples, (samples, *input_shape).
            y_train: Their labels or targets, (samples,).
            x_test: Test samples.
            y_test: Their labels or targets.
            name: What errors and results call the dataset.

        Returns:
            The dataset.

        Raises:
            DataError: Shapes, types or values do not fit.
        """
        xs = [_features(x, f"{name}: x_{part}") for x, part in ((x_train, "train"), (x_test, "test"))]
        ys = [_targets(y, f"{name}: y_{part}") for y, part in ((y_train, "train"), (y_test, "test"))]
        if ys[0].dtype != ys[1].dtype:
            raise DataError(f"{name}: y_train and y_test must both be labels or both be regression targets")
        labels = ys[0].dtype == np.int64
        classes = 1 + max((int(y.max()) for y in ys if y.size), default=0) if labels else None
        if classes is not None and classes < 1:
            raise DataError(f"{name}: labels must be 0 or more, and the largest is {classes - 1}")
        scale = 1.0 / 255.0 if xs[0].dtype == np.uint8 else 1.0
        return cls(name, xs[0], ys[0], xs[1], ys[1], classes, scale)

    @classmethod
    def from_torch(cls, train: Any, test: Any, name: str = "dataset") -> Self:
        """Make a dataset from two map-style torch datasets whose items are (x, y).

        Args:
            train: The training samples.
            test: The test samples.
            name: What errors and results call the dataset.

        Returns:
            The dataset.

        Raises:
            DataError: Items are no pairs, or do not fit together.
        """
        x_train, y_train = _items(train, f"{name}: train")
        x_test, y_test = _items(test, f"{name}: test")
        return cls.from_arrays(x_train, y_train, x_test, y_test, name)


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of one seed: a dataset, the samples each client holds, and what is known about them.

    F(θ) = (1/m) Σ_i F_i(θ), with F_i the mean loss over shard i, the samples of client i.

    Attributes:
        dataset: The dataset.
        shards: The samples of each client: m arrays of shape (samples of client i,), int64 indices into x_train.
        report: What a reader of results should know of the partition.
        optimum: θ*, the minimizer of F, where it is known; shape (parameters,), float64.
        some: Where only some clients of a federation are held: their numbers in it, shape (m,), int64.

    Raises:
        DataError: A client has no sample, or an index is out of range.
    """

    dataset: Dataset
    shards: tuple[np.ndarray, ...]
    report: dict[str, object]
    optimum: np.ndarray | None = None
    some: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not self.shards and self.some is None:
            raise DataError(f"{self.dataset.name}: no client; at least one shard is needed")
        samples = len(self.dataset.x_train)
        if self.some is not None and len(self.some) != len(self.shards):
            raise DataError(f"{self.dataset.name}: {len(self.some)} numbers for {len(self.shards)} clients")
        for first in range(0, len(self.shards), _SHARDS_PER_CHECK):
            some = self.shards[first : first + _SHARDS_PER_CHECK]
            if min(map(len, some)) == 0:
                empty = first + [len(shard) for shard in some].index(0)
                raise DataError(f"{self.dataset.name}: client {empty} holds no sample")
            indices = np.concatenate(some)
            if indices.dtype != np.int64 or indices.min() < 0 or indices.max() >= samples:
                raise DataError(f"{self.dataset.name}: shards must be int64 indices in [0, {samples - 1}]")

    @property
    def clients(self) -> int:
        """Number of clients, m."""
        return len(self.shards)

    @property
    def number(self) -> np.ndarray:
        """The clients' numbers in the whole federation. Shape: (clients,), int64."""
        return np.arange(len(self.shards)) if self.some is None else self.some

    def with_server(self, clients: int) -> Federation:
        """Return the same with a server after the clients: a row that never steps, and holds a sample for its shape.

        Args:
            clients: The number of clients of the whole federation.

        Returns:
            The federation; it has a shard more.
        """
        some = None if self.some is None else np.append(self.some, clients)
        return replace(self, shards=(*self.shards, self.shards[0][:1]), some=some)

    @property
    def sizes(self) -> np.ndarray:
        """Samples each client holds. Shape: (clients,), int64."""
        return np.fromiter(map(len, self.shards), dtype=np.int64, count=len(self.shards))


def restrict_to_clients(federations: Sequence[Federation], clients: Sequence[np.ndarray]) -> list[Federation]:
    """Restrict federations to some of their clients, with no sample of the others.

    Federations on one dataset share one afterwards, too. Where no client of a dataset is taken, one of its samples is
    stored, for its shape.

    Args:
        federations: The federations.
        clients: The numbers of the clients to take of each, shape (some,) each.

    Returns:
        The federations of these clients, in the same order.
    """
    held: dict[int, list[np.ndarray]] = {}
    for whole, some in zip(federations, clients, strict=True):
        held.setdefault(id(whole.dataset), []).extend(whole.shards[i] for i in some.tolist())
    rows, kept = {}, {}
    for whole in federations:
        key = id(whole.dataset)
        if key not in rows:
            rows[key] = np.unique(np.concatenate(held[key])) if held[key] else np.zeros(1, dtype=np.int64)
            x, y = whole.dataset.x_train[rows[key]], whole.dataset.y_train[rows[key]]
            kept[key] = replace(whole.dataset, x_train=x, y_train=y)
    out = []
    for whole, some in zip(federations, clients, strict=True):
        key = id(whole.dataset)
        shards = tuple(np.searchsorted(rows[key], whole.shards[i]) for i in some.tolist())
        out.append(Federation(kept[key], shards, whole.report, whole.optimum, whole.number[some]))
    return out


def as_array(values: Any, what: str) -> np.ndarray:
    """Give NumPy arrays, torch tensors, tables and nested lists as an array; ``what`` names them in an error."""
    torch = sys.modules.get("torch")  # a caller with a tensor has imported it
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} is no rectangular array: {error}") from None


def _features(values: Any, what: str) -> Any:
    if isinstance(values, StoredRows):
        return values
    return features(values, what)


def features(values: Any, what: str) -> np.ndarray:
    """Give samples as a dataset has them, uint8 or float32; ``what`` names them in an error."""
    x = as_array(values, what)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind not in "fiub":
        raise DataError(f"{what} is {x.dtype}; it must be an array of numbers")
    with np.errstate(over="ignore"):  # what overflows float32 becomes infinite and is refused as such
        return np.ascontiguousarray(x, dtype=np.float32)


def _targets(values: Any, what: str) -> np.ndarray:
    y = as_array(values, what)
    if y.dtype.kind in "iub":
        if y.dtype.kind == "u" and y.size and int(y.max()) >= 2**63:
            raise DataError(f"{what} has the label {int(y.max())}; labels are 0 … {MAX_CLASSES - 1} at most")
        return y.astype(np.int64)
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return y.astype(np.float32)
    raise DataError(f"{what} is {y.dtype}; it must be an array of integer labels or of floating-point targets")


def _items(dataset: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{what} is {type(dataset).__name__}; it must be a map-style torch dataset")
    pairs = [dataset[index] for index in range(len(dataset))]
    if not pairs:
        raise DataError(f"{what} has no sample")
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(f"{what} must give a pair (x, y) for every sample")
    xs, ys = ([as_array(pair[side], what) for pair in pairs] for side in (0, 1))
    if len({x.shape for x in xs}) > 1:
        raise DataError(f"{what} has samples of different shapes: {sorted({x.shape for x in xs})}")
    return np.stack(xs), np.stack([y.reshape(()) if y.size == 1 else y for y in ys])
