"""How good models are on the test sets: accuracy and loss of a stack of models, batch by batch.

What linear models give on the CPU does not depend on which others are evaluated with them, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from dspodfl import rng
from dspodfl.problem.data.dataset import Dataset
from dspodfl.problem.models import LOSSES, Model
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.problem.packing import Packing
from dspodfl.problem.sampling import targets_on
from dspodfl.rng import Stream

_MAX_SCORES_PER_BATCH = {"cpu": 2_500_000, "cuda": 256_000_000}
"""Scores of linear models held at a time (10 MB, 1 GB in float32)."""
_MAX_INPUTS_PER_BATCH = 4_000_000
"""Inputs times models held at a time while other models are evaluated (16 MB in float32)."""
_ROWS, _COLUMNS = 16, (1, 16, 48)
"""Products of linear models on the CPU have multiples of these, so that BLAS computes every column by one kernel.

With the last of the columns it does; the first that is found to give the same bits is taken (see `_columns`).
"""
_TRIED_COLUMNS = 1024
"""Products of more columns are padded untried: the padding is little of them."""
_BATCHES_AHEAD = 2
"""Evaluation batches that may be queued on a GPU while the host continues."""

Check = Callable[[], None]
"""Called between evaluation batches; what it raises ends the evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of models on the test set of their run; float64.

    Attributes:
        accuracy: Shape (models,); None for a regression.
        loss: The mean loss, shape (models,).
    """

    accuracy: Tensor | None
    loss: Tensor


class BatchEvaluator:
    """Evaluates packed models on the test sets of some datasets, batch by batch; nothing leaves the device.

    Args:
        datasets: the datasets.
        model: the model, with its constants in ``dtype``.
        packing: the layout of its packed models.
        device: where the models are stored.
        dtype: of the models.
        samples: test samples of each dataset that models are evaluated on; 0: all.
        stacked: the network as the GPU computes it, or None.
        looped: compute model by model, where grouped convolutions are slower than a loop.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        model: Model,
        packing: Packing,
        *,
        device: torch.device,
        dtype: torch.dtype,
        samples: int,
        stacked: Stacked | None,
        looped: bool,
    ) -> None:
        self._model, self._packing, self._device, self._dtype = model, packing, device, dtype
        self._stacked, self.looped = stacked, looped
        self._classes = [dataset.classes for dataset in datasets]
        self._tests = [self._test_set(dataset, samples) for dataset in datasets]
        self._inputs = math.prod(datasets[0].x_train.shape[1:])

    def _test_set(self, d: Dataset, samples: int) -> tuple[Tensor, Tensor]:
        rows = evaluated_samples(len(d.x_test), samples)
        x_test, y_test = (d.x_test, d.y_test) if rows is None else (d.x_test[rows], d.y_test[rows])
        x = torch.from_numpy(d.normalized(x_test)).to(self._device, self._dtype)
        x = self._packing.augmented(x.flatten(1)) if self._model.is_linear else x
        return x, targets_on(self._device, y_test, self._dtype)

    def evaluate(self, packed: Tensor, dataset: int, check: Check | None = None) -> Evaluation:
        """Evaluate packed models on the test set of one of the datasets.

        Args:
            packed: models, (models, width).
            dataset: the number of the dataset.
            check: called before every batch, `batches` times in all.
        """
        x, target = self._tests[dataset]
        classes = self._classes[dataset]
        loss = torch.zeros(len(packed), dtype=torch.float64, device=packed.device)
        right = torch.zeros_like(loss)
        samples, models = self._batch(len(packed), len(x))
        queue = _Queue(self._device if check else None)
        with torch.no_grad():
            for m in range(0, len(packed), models):
                some = self._weights(packed[m : m + models], samples)
                count = min(models, len(packed) - m)
                losses: Tensor | None = None  # of the samples at each place of a batch, added over the batches
                along = 0
                for s in range(0, len(x), samples):
                    if check:
                        check()
                    scores, along = self._scores(some, count, x[s : s + samples])
                    here = target[s : s + samples].unsqueeze(1 - along).expand(scores.shape[:2])
                    each = LOSSES[self._model.loss](scores, here)
                    losses = each.double() if losses is None else _added(losses, each, along)
                    if classes is not None:
                        guess = scores[..., :classes].argmax(dim=-1)
                        right[m : m + models] += (guess == here).sum(dim=along)
                    queue.put()
                if losses is not None:
                    loss[m : m + models] = ordered_sum(losses, along)
        return Evaluation(None if classes is None else right / len(x), loss / len(x))

    def batches(self, models: int, dataset: int) -> int:
        """Count the batches in which `evaluate` evaluates some models."""
        count = len(self._tests[dataset][0])
        samples, together = self._batch(max(models, 1), count)
        return -(-models // together) * -(-count // samples)

    def _batch(self, models: int, count: int) -> tuple[int, int]:
        """How many samples and models to evaluate at a time."""
        if self._stacked is not None:
            together, samples = self._stacked.chunks(models, count, torch.finfo(self._dtype).bits // 8)
            return samples, together
        return self._chunks(count)

    def _chunks(self, count: int) -> tuple[int, int]:
        """How many samples and models to evaluate at a time: by scores for linear models, else by inputs."""
        if self._model.is_linear:
            most = _MAX_SCORES_PER_BATCH[self._device.type]
            samples = min(count, 512) if self._device.type == "cpu" else count  # few stay in the cache
            return samples, max(1, most // (self._model.outputs * samples))
        samples = min(count, 256)
        return samples, max(1, _MAX_INPUTS_PER_BATCH // (samples * self._inputs))

    def _weights(self, packed: Tensor, samples: int) -> Tensor:
        """Packed models as `_scores` takes them: of linear ones all rows of weights, padded on the CPU."""
        if not self._model.is_linear:
            return packed
        stride = self._packing.stride
        weights = packed.reshape(-1, stride)
        if self._device.type != "cpu":
            return weights
        rows = -(-samples // _ROWS) * _ROWS
        return _padded(weights, _columns(weights.dtype, rows, len(weights), stride, torch.get_num_threads()))

    def _scores(self, some: Tensor, count: int, x: Tensor) -> tuple[Tensor, int]:
        """Scores of ``count`` models, and which of the first two axes is that of the samples.

        Shapes: some: what `_weights` gives, x (samples, ...)
        -> (models, samples, outputs) or (samples, models, outputs).
        """
        if self._stacked is not None:
            return self._stacked.scores(some, x), 1
        if self._model.is_linear:
            rows = x if self._device.type != "cpu" else _padded(x, _ROWS)
            flat = rows @ some.T  # one product for all models
            return flat[: len(x), : count * self._model.outputs].view(len(x), count, -1), 0
        if self.looped:
            return torch.stack([self._model.scores(one, x) for one in some]), 1
        return vmap(self._model.scores, in_dims=(0, None))(some, x), 1


def evaluated_samples(count: int, samples: int) -> np.ndarray | None:
    """Choose the test samples that are evaluated; the same for every algorithm, seed and study.

    Args:
        count: The number of test samples.
        samples: How many are evaluated; 0: all.

    Returns:
        Their indices in increasing order, shape (samples,), int64; None where all are evaluated.
    """
    if not 0 < samples < count:
        return None
    return np.sort(rng.permutation(0, Stream.EVAL_SAMPLE, count)[:samples])


def evaluated_clients(seed: int, count: int, clients: int, among: np.ndarray | None = None) -> np.ndarray | None:
    """Choose the clients of a run that are evaluated; the same for all algorithms of a seed.

    Args:
        seed: The seed of the run.
        count: The number of clients of the run.
        clients: How many are evaluated; 0: all.
        among: The clients of which they are, ascending; None: any.

    Returns:
        Their numbers in increasing order, shape (clients,), int64; None where all are evaluated.

    >>> evaluated_clients(seed=0, count=5, clients=0) is None
    True
    """
    every = np.arange(count) if among is None else among
    if not 0 < clients < len(every):
        return None if len(every) == count else every
    drawn = rng.uniform(seed, Stream.EVAL_CLIENT, np.arange(count))[:, 0]
    return np.sort(every[np.argsort(drawn[every], kind="stable")[:clients]])


def ordered_sum(values: Tensor, dim: int) -> Tensor:
    """Sum over an axis; on the CPU by additions in pairs, whose order depends on the length of that axis alone.

    PyTorch's own sums on the CPU depend on the other axes and on the number of threads.

    Args:
        values: The numbers.
        dim: The axis, of length n.

    Returns:
        The sums, in the shape of ``values`` without that axis.

    >>> ordered_sum(torch.ones(3, 2), dim=0).tolist()
    [3.0, 3.0]
    """
    if values.device.type != "cpu" or values.shape[dim] == 0:
        return values.sum(dim=dim)
    while (count := values.shape[dim]) > 1:
        half = count // 2
        pairs = values.narrow(dim, 0, half) + values.narrow(dim, half, half)
        values = torch.cat([pairs, values.narrow(dim, count - 1, 1)], dim) if count % 2 else pairs
    return values.squeeze(dim)


def _added(totals: Tensor, values: Tensor, dim: int) -> Tensor:
    """Totals plus values that may be fewer along an axis; in place."""
    totals.narrow(dim, 0, values.shape[dim]).add_(values)
    return totals


@cache
def _columns(dtype: torch.dtype, rows: int, columns: int, features: int, threads: int) -> int:
    """Weights are padded to a multiple of this, so that a score has the same bits whatever the others are.

    BLAS computes products of few columns, and columns at an edge, by other kernels, whose sums may have another order.
    Whether they do depends on the library, the processor and the shapes: it is tried here, on random numbers, against
    the product that has no edges. ``threads`` is what BLAS chooses by as well.
    """
    del threads
    *fine, whole = _COLUMNS
    if columns > _TRIED_COLUMNS:
        return whole
    random = torch.Generator().manual_seed(0)
    x = torch.rand((rows, features), dtype=dtype, generator=random)
    weights = torch.rand((-(-columns // whole) * whole, features), dtype=dtype, generator=random)
    exact = {count: x[:count] @ weights.T for count in {_ROWS, rows // 2 // _ROWS * _ROWS, rows}}
    for multiple in fine:
        width = -(-columns // multiple) * multiple
        if all(torch.equal(x[:count] @ weights[:width].T, found[:, :width]) for count, found in exact.items()):
            return multiple
    return whole


def _padded(rows: Tensor, multiple: int) -> Tensor:
    """A matrix with rows of zeros up to a multiple of their number."""
    short = -len(rows) % multiple
    return torch.nn.functional.pad(rows, (0, 0, 0, short)) if short else rows


class _Queue:
    """Keeps the host at most a few batches ahead of a GPU, so that it can stop where the GPU is."""

    def __init__(self, device: torch.device | None) -> None:
        self._events: list[torch.cuda.Event] | None = [] if device is not None and device.type == "cuda" else None

    def put(self) -> None:
        """A batch was queued."""
        if self._events is None:
            return
        self._events.append(torch.cuda.Event())
        self._events[-1].record()
        if len(self._events) > _BATCHES_AHEAD:
            self._events.pop(0).synchronize()
