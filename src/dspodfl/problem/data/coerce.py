"""Data as people have them, made a `Dataset` or a `Federation`: arrays, splits, torch and Hugging Face datasets.

What is given is recognized by its type alone:

    Dataset, Federation                           as it is
    (x, y)                                        one pair of arrays
    (x_train, y_train, x_test, y_test)            four arrays
    (train, test)                                 a tuple of two parts, or two dataset objects
    {"train": …, "test": …}                       a dictionary of splits
    [(x, y), (x, y), …]                           a list of parts, one per client

A part is a pair of arrays ``(x, y)``, a dictionary of columns, a map-style dataset or a list of samples; a sample is
``(x, y)`` or a dictionary such as ``{"image": …, "label": …}``. Where there are no test samples, some are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any

import numpy as np

from dspodfl import rng
from dspodfl.errors import DataError, InputError
from dspodfl.problem.data.dataset import Dataset, Federation, as_array
from dspodfl.rng import Stream

FEATURES = ("image", "img", "x", "pixel_values", "features", "feature", "input", "inputs", "data", "images", "X")
"""Names of what a model reads, the first that is there."""
LABELS = ("label", "y", "labels", "fine_label", "target", "targets", "class")
"""Names of what it predicts, the first that is there."""
VALIDATION = ("validation", "valid", "val", "dev")
"""Splits that are used as a test split where there is none."""
ALLOWED = (
    "a Dataset, a Federation, (x, y), (x_train, y_train, x_test, y_test), (train, test), "
    '{"train": …, "test": …} or a list of one (x, y) per client'
)
HELD_OUT = 6
"""One sample in this many is cut off for testing."""
_HOLD_OUT = 2**20 + 3  # k of an address in the stream of partitions, apart from those of the partitions themselves

Samples = tuple[np.ndarray, np.ndarray]
"""Samples and their labels or targets. Shapes: (samples, *shape), (samples,)."""


@dataclass
class CoercedData:
    """Data in the project's form.

    Attributes:
        data: The dataset, or the data of each client.
        notes: Sentences for a person on what was decided, such as which samples are held out for testing.
    """

    data: Dataset | Federation
    notes: list[str] = field(default_factory=list)


def as_data(given: Any, seed: int) -> CoercedData:
    """Make a dataset, or each client's data, of what was given.

    Args:
        given: one of the forms above.
        seed: decides which samples are cut off for testing where there are no test samples.

    Returns:
        The data, with notes on what a person should know of them.

    Raises:
        InputError: it is none of the forms.
        DataError: shapes, lengths or types do not fit.

    >>> found = as_data((np.zeros((12, 3)), np.arange(12) % 2), seed=0)
    >>> found.data.x_train.shape, found.data.x_test.shape
    ((10, 3), (2, 3))
    """
    if isinstance(given, Dataset | Federation):
        return CoercedData(given)
    train, test, about = _splits(given)
    if isinstance(train, list):
        return _clients(train, test, seed, about)
    (x, y), held_out = train, test
    notes = _notes(about)
    if held_out is None:
        train_rows, test_rows = _hold_out(len(x), seed)
        (x, y), held_out = (x[train_rows], y[train_rows]), (x[test_rows], y[test_rows])
        notes.append(_note_held_out(about, len(test_rows), len(train_rows) + len(test_rows), seed))
    made = Dataset.from_arrays(x, y, *held_out, name="data")
    return CoercedData(replace(made, about=about), notes)


def with_channel_axis(data: Dataset | Federation) -> Dataset | Federation:
    """Give greyscale images a channel axis.

    Args:
        data: A dataset, or the data of clients.

    Returns:
        The same, with samples of shape (1, height, width) where they had shape (height, width).
    """
    dataset = data.dataset if isinstance(data, Federation) else data
    if len(dataset.input_shape) != 2:
        return data
    x_train, x_test = (x.reshape(len(x), 1, *x.shape[1:]) for x in (dataset.x_train, dataset.x_test))
    made = replace(dataset, x_train=x_train, x_test=x_test)
    return replace(data, dataset=made) if isinstance(data, Federation) else made


# --- what was given -------------------------------------------------------------------------------------------


def _splits(given: Any) -> tuple[Samples | list[Samples], Samples | None, dict[str, object]]:
    """Training samples, or a list of each client's; test samples, if any; and what should be known of it."""
    kind = _kind(given)
    if kind == "mapping":
        return _from_mapping(given)
    if kind in ("pair", "columns", "items"):
        return _part(given, "data"), None, {}
    if kind == "parts":
        objects = not any(isinstance(part, tuple | list | Mapping) for part in given)
        if len(given) == 2 and (isinstance(given, tuple) or objects):
            return _part(given[0], "train"), _part(given[1], "test"), {}
        return [_part(part, f"client {i}") for i, part in enumerate(given)], None, {}
    if _are_four_arrays(given):
        return _pair(given[0], given[1], "train"), _pair(given[2], given[3], "test"), {}
    raise InputError("data", _describe(given), ALLOWED)


def _from_mapping(given: Mapping[str, Any]) -> tuple[Samples | list[Samples], Samples | None, dict[str, object]]:
    arrays = ("x_train", "y_train", "x_test", "y_test")
    if set(arrays) <= set(given):
        x, y, x_test, y_test = (given[key] for key in arrays)
        return _pair(x, y, "train"), _pair(x_test, y_test, "test"), {}
    if "train" not in given:
        names = ", ".join(map(str, given))
        raise InputError(
            "data", f"a dictionary with {names or 'nothing'}", f"one with 'train' and 'test', or {ALLOWED}"
        )
    about: dict[str, object] = {}
    tested = next((name for name in ("test", *VALIDATION) if name in given), None)
    if tested not in (None, "test"):
        about["test_split"] = f"the split {tested!r}"
    unused = [str(name) for name in given if name not in ("train", tested)]
    if unused:
        about["unused_splits"] = unused
    test = None if tested is None else _part(given[tested], tested)
    train = given["train"]
    if _kind(train) == "parts":
        return [_part(part, f"train, client {i}") for i, part in enumerate(train)], test, about
    return _part(train, "train"), test, about


def _are_four_arrays(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 4 and all((_ndim(part) or 0) >= 1 for part in given)


def _kind(value: Any) -> str:
    """What a value is: mapping, columns, sample, array, pair, items, parts or unknown."""
    if isinstance(value, Mapping):
        x, y = _pick(value, FEATURES), _pick(value, LABELS)
        if x is None or y is None or "train" in value:
            return "mapping"
        return "columns" if (_ndim(value[y]) or 0) >= 1 else "sample"
    if _is_array(value) or _is_image(value):
        return "array"
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        return "unknown"
    if not isinstance(value, tuple | list):
        return "items"
    return _kind_of_sequence(value)


def _kind_of_sequence(value: Sequence[Any]) -> str:
    if len(value) == 2:
        first, second = _ndim(value[0]), _ndim(value[1])
        if first is not None and second is not None and first >= 1:
            if second == 0:
                return "sample"
            if first > second or all(map(_is_array, value)):
                return "pair"
    inner = _kind(value[0]) if len(value) else "unknown"
    if inner == "sample":
        return "items"
    if inner in ("pair", "columns", "items"):
        return "parts"
    return "array" if _ndim(value) is not None else "unknown"


def _ndim(value: Any) -> int | None:
    """The number of axes of an array, a nested list or an image; None where it is no such thing."""
    if _is_array(value):
        return len(value.shape)
    if _is_image(value):
        return 2 if len(value.getbands()) == 1 else 3
    if isinstance(value, Number | np.generic):
        return 0
    if isinstance(value, list | tuple) and len(value):
        inner = _ndim(value[0])
        return None if inner is None else 1 + inner
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape") and not isinstance(value, np.generic)


def _is_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "mode") and hasattr(value, "size")


def _pick(names: Mapping[str, Any], known: Sequence[str]) -> str | None:
    return next((name for name in known if name in names), None)


def _describe(given: Any) -> str:
    """Name what was given, for a message."""
    if _is_array(given):
        return f"{type(given).__name__} of shape {tuple(given.shape)}"
    if isinstance(given, tuple | list):
        inside = ", ".join(_describe(part) for part in given[:4]) + (", …" if len(given) > 4 else "")
        return f"{type(given).__name__} of {len(given)} ({inside})"
    return type(given).__name__


# --- parts ----------------------------------------------------------------------------------------------------


def _part(given: Any, what: str) -> Samples:
    """Samples and labels of a part."""
    kind = _kind(given)
    if kind == "pair":
        return _pair(given[0], given[1], what)
    if kind == "columns":
        x, y = _pick(given, FEATURES), _pick(given, LABELS)
        return _pair(given[x], given[y], what)
    if kind == "items":
        samples = [_sample(given[i], what, i) for i in range(len(given))]
        if not samples:
            raise DataError(f"{what} has no sample")
        return _pair([x for x, _ in samples], [y for _, y in samples], what)
    allowed = "a pair (x, y), a dictionary of columns, a map-style dataset or a list of samples"
    raise DataError(f"{what} is {_describe(given)}; it must be {allowed}")


def _sample(item: Any, what: str, number: int) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        x, y = _pick(item, FEATURES), _pick(item, LABELS)
        if x is None or y is None:
            wanted = f"one of {', '.join(FEATURES)} and one of {', '.join(LABELS)}"
            raise DataError(f"{what}, sample {number} has the keys {', '.join(map(str, item))}; it must have {wanted}")
        return item[x], item[y]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise DataError(f"{what}, sample {number} is {_describe(item)}; it must be a pair (x, y) or a dictionary")


def _pair(x: Any, y: Any, what: str) -> Samples:
    features, labels = _features(x, what), _values(y, f"{what}: y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if features.ndim < 2 or features.size == 0:
        raise DataError(f"{what}: x has shape {features.shape}; it must be (samples, *shape), with at least one sample")
    if labels.ndim != 1 or len(labels) != len(features):
        raise DataError(
            f"{what}: x has {len(features)} samples, y has shape {labels.shape}; it must be ({len(features)},)"
        )
    return features, labels


def _features(x: Any, what: str) -> np.ndarray:
    """Samples as an array; the channels of images come first, as models have them."""
    pictures = isinstance(x, list | tuple) and len(x) > 0 and _is_image(x[0])
    values = _values(x, f"{what}: x")
    if pictures and values.ndim == 3:
        return values[:, None]
    last_is_channel = values.ndim == 4 and values.shape[-1] in (1, 3, 4)
    if last_is_channel and (pictures or values.shape[1] not in (1, 3, 4)):
        return np.moveaxis(values, -1, 1)
    return values


def _values(values: Any, what: str) -> np.ndarray:
    if not isinstance(values, list | tuple):
        return as_array(values, what)
    parts = [np.asarray(value) if _is_image(value) else as_array(value, what) for value in values]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise DataError(f"{what} has samples of different shapes: {sorted(shapes)}")
    return np.stack(parts) if parts else np.zeros(0)


# --- splits ---------------------------------------------------------------------------------------------------


def _clients(parts: list[Samples], test: Samples | None, seed: int, about: dict[str, object]) -> CoercedData:
    """Each client's own data."""
    first = parts[0][0]
    for i, (x, y) in enumerate(parts):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            found = f"samples of shape {x.shape[1:]}, {x.dtype}"
            raise DataError(f"client {i} has {found}; client 0 has {first.shape[1:]}, {first.dtype}")
        if y.dtype.kind != parts[0][1].dtype.kind:
            raise DataError(f"client {i} has y of {y.dtype}, client 0 of {parts[0][1].dtype}; they must be alike")
    notes = _notes(about)
    if test is None:
        rows = [_hold_out(len(x), seed, i, at_least=0) for i, (x, _) in enumerate(parts)]
        held = [(x[test_rows], y[test_rows]) for (x, y), (_, test_rows) in zip(parts, rows, strict=True)]
        test = np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held])
        total, number = sum(len(x) for x, _ in parts), len(test[0])
        if not number:
            raise DataError(
                f"no client has {HELD_OUT} samples, of which one could be cut off for testing; "
                'give test samples: {"train": [(x, y), …], "test": (x, y)}'
            )
        parts = [(x[train_rows], y[train_rows]) for (x, y), (train_rows, _) in zip(parts, rows, strict=True)]
        notes.append(_note_held_out(about, number, total, seed))
    ends = np.cumsum([len(x) for x, _ in parts])
    shards = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    x, y = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    dataset = Dataset.from_arrays(x, y, *test, name="data")
    return CoercedData(Federation(dataset, shards, about), notes)


def _hold_out(samples: int, seed: int, client: int = 0, *, at_least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the samples for training and of those that are held out for testing, by addressed draws.

    Shapes: (training samples,), (test samples,), int64, both sorted.
    """
    number = max(at_least, samples // HELD_OUT)
    if number >= samples and at_least:
        raise DataError(f"data has {samples} sample; at least 2 are needed, as one is cut off for testing")
    order = rng.permutation(seed, Stream.PARTITION, samples, i=client, k=_HOLD_OUT)
    return np.sort(order[number:]), np.sort(order[:number])


def _note_held_out(about: dict[str, object], number: int, total: int, seed: int) -> str:
    about["test_split"] = f"{number} of {total} samples, cut off with seed {seed}"
    return (
        f"data were given without test samples: {number} of the {total} samples are cut off for testing (seed {seed})"
    )


def _notes(about: Mapping[str, object]) -> list[str]:
    unused, test = about.get("unused_splits"), about.get("test_split")
    notes = [f"data: test samples are {test}"] if test else []
    return notes + (
        [f"data: splits that are not used: {', '.join(map(str, unused))}"] if isinstance(unused, list) else []
    )
