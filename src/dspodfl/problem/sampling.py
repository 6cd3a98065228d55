"""The training samples of a stack of runs on a device, and the minibatches that clients draw from them.

Sample n of the minibatch of client i at iteration k is the index at address (seed, BATCH, i, k, slot n): it does
not depend on the algorithm, so comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import Model
from dspodfl.problem.packing import Packing
from dspodfl.rng import Stream

_MAX_INPUTS_PER_CHUNK = 500_000
"""Inputs gathered at a time while training (2 MB in float32), one iteration's at least."""


def distinct_datasets(federations: Sequence[Federation]) -> tuple[list[Dataset], list[int]]:
    """Return the datasets of some federations, each once, and the number of each federation's dataset."""
    datasets: list[Dataset] = []
    numbers = []
    for federation in federations:
        known = [number for number, dataset in enumerate(datasets) if dataset is federation.dataset]
        if not known:
            datasets.append(federation.dataset)
        numbers.append(known[0] if known else len(datasets) - 1)
    return datasets, numbers


def targets_on(device: torch.device, y: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Copy labels, or targets in a dtype, to a device."""
    found = torch.from_numpy(y).to(device)
    return found.to(dtype) if found.is_floating_point() else found


class TrainingSamples:
    """The training samples of some datasets, one after the other, on a device.

    Samples stay as they are stored (bytes stay bytes) where all datasets are stored alike, and are normalized where
    they are used.

    Args:
        datasets: the datasets.
        model: the model that is trained on them.
        packing: the layout of its packed models.
        device: where the samples are stored.
        inputs: the dtype of the inputs that `inputs` returns.
        targets: the dtype of targets that are no labels.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        model: Model,
        packing: Packing,
        *,
        device: torch.device,
        inputs: torch.dtype,
        targets: torch.dtype,
    ) -> None:
        self._packing, self._is_linear, self._dtype = packing, model.is_linear, inputs
        alike = len({(d.x_train.dtype, d.scale, d.shift) for d in datasets}) == 1
        self.scale, self.shift = (datasets[0].scale, datasets[0].shift) if alike else (1.0, 0.0)
        xs = []
        for d in datasets:
            x = d.x_train if alike else d.normalized(d.x_train)
            xs.append(torch.from_numpy(x.reshape(len(x), -1) if model.is_linear else x).to(device))
        self.x = torch.cat(xs) if len(xs) > 1 else xs[0]
        ys = [targets_on(device, d.y_train, targets) for d in datasets]
        self.y = torch.cat(ys) if len(ys) > 1 else ys[0]
        self._shape = (packing.stride,) if model.is_linear else tuple(self.x.shape[1:])

    def normalized(self, x: Tensor) -> Tensor:
        """Convert stored samples to inputs: scale · x + shift in float32, then in the precision of gradients."""
        x = x.float()
        if (self.scale, self.shift) != (1.0, 0.0):
            x = x.mul_(self.scale).add_(self.shift)
        return x.to(self._dtype)

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs of some samples. Shapes: (...) -> (..., *input_shape), or (..., stride) if linear."""
        x = self.normalized(self.x.index_select(0, rows.reshape(-1)))
        return (self._packing.augmented(x) if self._is_linear else x).view(*rows.shape, *self._shape)

    def targets(self, rows: Tensor) -> Tensor:
        """Return the labels or targets of some samples, in the shape of ``rows``."""
        return self.y.index_select(0, rows.reshape(-1)).view(rows.shape)


class Minibatches:
    """Draws the minibatches of a stack of runs.

    Runs that share seed and federation share their minibatches, which are drawn once: ``batch_of`` has the index of
    the drawn minibatch that each client uses.

    Args:
        runs: (seed, federation) of each run; clients are stacked in this order.
        starts: index of the first sample of each run's dataset among all training samples.
        batch_size: samples in a minibatch.
        device: where rows are stored.
    """

    def __init__(
        self,
        runs: Sequence[tuple[int, Federation]],
        starts: Sequence[int],
        batch_size: int,
        device: torch.device,
    ) -> None:
        known: dict[tuple[int, int], int] = {}
        held: list[tuple[int, Federation, int]] = []
        batch_of, drawn = [], 0
        for (seed, federation), start in zip(runs, starts, strict=True):
            key = (seed, id(federation))
            if key not in known:
                known[key] = drawn
                held.append((seed, federation, start))
                drawn += federation.clients
            batch_of.append(np.arange(known[key], known[key] + federation.clients))
        self.batch_of = torch.from_numpy(np.concatenate(batch_of)).to(device)
        self._shards = _Shards.of(held, device)
        self._batch_size = batch_size
        self._shared = drawn < len(self.batch_of)

    def held(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows that clients hold: client n of the stack holds order[offset[n] : offset[n] + size[n]].

        Shapes: order (samples held,), offset (clients,), size (clients,).
        """
        shards, which = self._shards, self.batch_of.cpu().numpy()
        order, offset, size = (array.cpu().numpy() for array in (shards.order, shards.offset, shards.size))
        return order, offset[which], size[which]

    def draws(self, k: np.ndarray) -> Tensor:
        """Draw the training rows of the minibatches, once for runs that share them.

        Shapes: (iterations,) -> (iterations, drawn clients, B), int32.
        """
        return self._shards.draw(k, self._batch_size)

    def rows(self, k: np.ndarray) -> Tensor:
        """Draw the training rows of every client's minibatch. Shapes: (iterations,) -> (iterations, clients, B)."""
        drawn = self.draws(k)
        return (drawn[:, self.batch_of] if self._shared else drawn).long()


@dataclass(frozen=True, eq=False)
class _Shards:
    """Where the samples of clients are: client i of a seed holds order[offset : offset + size]."""

    order: Tensor  # (samples held,) int32, training rows
    seed: Tensor  # (drawn clients,), as what follows
    client: Tensor
    offset: Tensor
    size: Tensor

    @staticmethod
    def of(held: Sequence[tuple[int, Federation, int]], device: torch.device) -> _Shards:
        """Of seeds, federations and where the samples of their datasets start."""
        sizes = [federation.sizes for _, federation, _ in held]
        none = np.zeros(0, dtype=np.int64)
        order = [(np.concatenate([none, *data.shards]) + start).astype(np.int32) for _, data, start in held]
        client = [federation.number for _, federation, _ in held]
        seed = np.repeat([seed for seed, _, _ in held], [len(size) for size in sizes])
        size = np.concatenate(sizes)
        arrays = (np.concatenate(order), seed, np.concatenate(client), np.cumsum(size) - size, size)
        return _Shards(*(torch.from_numpy(a).to(device) for a in arrays))

    def draw(self, k: np.ndarray, batch_size: int) -> Tensor:
        at = torch.as_tensor(k, device=self.order.device)[:, None]
        words = rng.words(self.seed, Stream.BATCH, self.client, k=at, slots=batch_size)
        return self.order[self.offset[:, None] + rng.index_below(words, self.size[:, None])]


class Batches:
    """The minibatches of a block of iterations; inputs are gathered a few iterations at a time.

    Shapes: rows (iterations, clients, B); ``batches[t]`` is x (clients, B, ...) and y (clients, B).
    """

    def __init__(self, samples: TrainingSamples, rows: Tensor) -> None:
        self.rows = rows
        self._samples = samples
        self._y = samples.targets(rows).unbind()
        numbers = rows[0].numel() * samples.x[0].numel()
        self._stride = max(1, _MAX_INPUTS_PER_CHUNK // numbers)
        self._start, self._x = -1, rows.unbind()

    def __getitem__(self, t: int) -> tuple[Tensor, Tensor]:
        start = t - t % self._stride
        if start != self._start:
            self._start, self._x = start, self._samples.inputs(self.rows[start : start + self._stride]).unbind()
        return self._x[t - start], self._y[t]
