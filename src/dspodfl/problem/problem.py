"""The problem that the clients solve: their samples, the gradients of a stack of clients, and how good models are.

    g_i = ∇F_i(θ_i; ξ_i),    ξ_i: a minibatch drawn uniformly with replacement from client i's shard

Sample n of the minibatch of client i at iteration k is the index at address (seed, BATCH, i, k, slot n): it does
not depend on the algorithm, so comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dspodfl import rng
from dspodfl._kernels.cuda import minibatch as gather
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import LOSSES, Model
from dspodfl.problem.models.linear import has_bias, linear_gradient, linear_parts, looped_gradient
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.rng import Stream

_SCORES_AT_ONCE = {"cpu": 2_500_000, "cuda": 256_000_000}
"""Scores held at a time while evaluating (10 MB, 1 GB in float32)."""
_NUMBERS_AT_ONCE = 500_000
"""Inputs gathered at a time while training (2 MB in float32), one iteration's at least."""
_CLIENTS_AT_ONCE = 64
"""Networks whose gradients are computed at a time by vmap, so that what it keeps in between stays small."""
_LANE = 4  # numbers in the 16 bytes that a GPU thread reads at a time
_ROWS, _COLUMNS = 16, (1, 16, 48)
"""Products of linear models on the CPU have multiples of these, so that BLAS computes every column by one kernel.

With the last of the columns it does; the first that is found to give the same bits is taken (see `_columns`).
"""
_TRIED_COLUMNS = 1024
"""Products of more columns are padded untried: the padding is little of them."""
_BATCHES_AHEAD = 2
"""Evaluation batches that may be queued on a GPU while the host goes on."""

Check = Callable[[], None]
"""Called between evaluation batches; what it raises ends the evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """How each model does on the test set of its run: accuracy (models,) or None, mean loss (models,); float64."""

    accuracy: Tensor | None
    loss: Tensor


class Problem:
    """The samples of a stack of runs on a device, and the model that all of them train.

    Runs come as (seed, federation); clients are stacked in run order. Runs that share seed and federation share
    their minibatches, which are drawn once: ``batch_of`` says which of the drawn ones each client uses. Samples
    stay as they are stored (bytes stay bytes) and are normalized where they are used.

    Models are kept *packed*, in the order that gradients are computed in: of a linear model, each weight row beside
    its bias; of a network with convolutions on a GPU, channels last. Rows of a packed matrix are ``width`` long.
    """

    def __init__(
        self,
        model: Model,
        runs: Sequence[tuple[int, Federation]],
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute: torch.dtype | None = None,
        tf32: bool = False,
        samples: int = 0,
    ) -> None:
        self.device, self.dtype, self.compute = torch.device(device), dtype, compute or dtype
        self.tf32 = tf32
        self.model = model.to(self.device, self.compute)
        self._judged = model.to(self.device, self.dtype)
        self.batch_size = batch_size
        self.samples = samples
        """Test samples that models are evaluated on; 0: all."""
        self.datasets: list[Dataset] = []
        self.dataset_of_run = [self._number(federation.dataset) for _, federation in runs]
        self._load()
        starts = np.cumsum([0, *(len(d.x_train) for d in self.datasets)])
        known: dict[tuple[int, int], int] = {}
        held: list[tuple[int, Federation, int]] = []
        batch_of, drawn = [], 0
        for (seed, federation), dataset in zip(runs, self.dataset_of_run, strict=True):
            key = (seed, id(federation))
            if key not in known:
                known[key] = drawn
                held.append((seed, federation, int(starts[dataset])))
                drawn += federation.clients
            batch_of.append(np.arange(known[key], known[key] + federation.clients))
        self._shards = _Shards.of(held, self.device)
        self.batch_of = torch.from_numpy(np.concatenate(batch_of)).to(self.device)
        self._shared = drawn < len(self.batch_of)
        convolves = any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in self.model.module.modules())
        self._one_by_one = convolves and self.device.type == "cpu"  # where grouped convolutions are slower than a loop
        self.stacked = self._stacked()
        self._share = torch.tensor(1.0 / batch_size, dtype=self.compute, device=self.device)
        self._layout = self._order() if self.model.is_linear else None

    def _stacked(self) -> Stacked | None:
        if self.device.type != "cuda" or self.model.is_linear or self.dtype != torch.float32:
            return None
        return Stacked.of(self.model, self.precision)

    @property
    def precision(self) -> Literal["fp32", "tf32", "bf16"]:
        """How products of float32 matrices are computed on a GPU: fp32, tf32 or bf16."""
        return "bf16" if self.compute == torch.bfloat16 else "tf32" if self.tf32 else "fp32"

    def _number(self, dataset: Dataset) -> int:
        for number, known in enumerate(self.datasets):
            if known is dataset:
                return number
        self.datasets.append(dataset)
        return len(self.datasets) - 1

    def _load(self) -> None:
        """Take the samples to the device: as stored, where all datasets are stored alike."""
        alike = len({(d.x_train.dtype, d.scale, d.shift) for d in self.datasets}) == 1
        first = self.datasets[0]
        self.scale, self.shift = (first.scale, first.shift) if alike else (1.0, 0.0)
        flat = self.model.is_linear
        xs, tests = [], []
        for d in self.datasets:
            x = d.x_train if alike else d.normalized(d.x_train)
            xs.append(torch.from_numpy(x.reshape(len(x), -1) if flat else x).to(self.device))
            rows = evaluated_samples(len(d.x_test), self.samples)
            x_test, y_test = (d.x_test, d.y_test) if rows is None else (d.x_test[rows], d.y_test[rows])
            test = torch.from_numpy(d.normalized(x_test)).to(self.device, self.dtype)
            tests.append((self._augmented(test.flatten(1)) if flat else test, self._target(y_test, self.dtype)))
        self.x = torch.cat(xs) if len(xs) > 1 else xs[0]
        ys = [self._target(d.y_train, self.compute) for d in self.datasets]
        self.y = torch.cat(ys) if len(ys) > 1 else ys[0]
        self._tests = tests

    def _target(self, y: np.ndarray, dtype: torch.dtype) -> Tensor:
        found = torch.from_numpy(y).to(self.device)
        return found.to(dtype) if found.is_floating_point() else found

    @property
    def features(self) -> int:
        """Inputs of a linear model, with the constant 1 that its biases weigh."""
        return int(np.prod(self.model.input_shape)) + has_bias(self.model)

    @property
    def stride(self) -> int:
        """Numbers from one output's weights to the next in a packed linear model."""
        return -(-self.features // _LANE) * _LANE if self.device.type == "cuda" else self.features

    @property
    def width(self) -> int:
        """Numbers in a packed model."""
        if self.model.is_linear:
            return self.model.outputs * self.stride
        return self.stacked.width if self.stacked is not None else self.model.parameters

    def _augmented(self, x: Tensor) -> Tensor:
        """Flat inputs with the constant 1 and the padding that packed linear models have. (..., D) -> (..., stride)."""
        out = x.new_zeros((*x.shape[:-1], self.stride))
        out[..., : x.shape[-1]] = x
        if has_bias(self.model):
            out[..., x.shape[-1]] = 1.0
        return out

    def normalized(self, x: Tensor) -> Tensor:
        """Stored samples as the model's input: scale · x + shift in float32, then in the precision of gradients."""
        x = x.float()
        if (self.scale, self.shift) != (1.0, 0.0):
            x = x.mul_(self.scale).add_(self.shift)
        return x if self.stacked is not None else x.to(self.compute)

    def inputs(self, rows: Tensor) -> Tensor:
        """The inputs of some training samples. Shapes: (...) -> (..., *input_shape), or (..., stride) if linear."""
        x = self.normalized(self.x.index_select(0, rows.reshape(-1)))
        return (self._augmented(x) if self.model.is_linear else x).view(*rows.shape, *self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.stride,) if self.model.is_linear else tuple(self.x.shape[1:])

    def targets(self, rows: Tensor) -> Tensor:
        """The labels or targets of some training samples, shaped as the rows."""
        return self.y.index_select(0, rows.reshape(-1)).view(rows.shape)

    def draws(self, k: np.ndarray) -> Tensor:
        """Training rows of the minibatches, once for runs that share them.

        Shapes: (iterations,) -> (iterations, drawn clients, B), int32.
        """
        return self._shards.draw(k, self.batch_size)

    def minibatches(self, k: np.ndarray) -> Tensor:
        """Training rows in every client's minibatch. Shapes: (iterations,) -> (iterations, clients, B)."""
        drawn = self.draws(k)
        return (drawn[:, self.batch_of] if self._shared else drawn).long()

    def batches(self, k: np.ndarray) -> Batches:
        """The minibatches of a block of iterations, ready to be taken one iteration at a time."""
        return Batches(self, self.minibatches(k))

    def pack(self, theta: Tensor) -> Tensor:
        """Models in the order that gradients are computed in. Shapes: (clients, p) -> (clients, width)."""
        if self.stacked is not None:
            return self.stacked.pack(theta)
        if self._layout is None:
            return theta
        if self.stride == self.features:
            return theta[:, self._layout]
        out = theta.new_zeros((len(theta), self.model.outputs, self.stride))
        out[:, :, : self.features] = theta[:, self._layout].view(len(theta), -1, self.features)
        return out.view(len(theta), -1)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`. Shapes: (clients, width) -> (clients, p)."""
        if self.stacked is not None:
            return self.stacked.unpack(packed)
        if self._layout is None:
            return packed
        dense = packed.view(len(packed), -1, self.stride)[:, :, : self.features].reshape(len(packed), -1)
        return dense[:, torch.argsort(self._layout)]

    def _order(self) -> Tensor:
        weight, bias = linear_parts(self.model, torch.arange(self.model.parameters, device=self.device)[None])
        return (weight if bias is None else torch.cat([weight, bias[:, :, None]], dim=2)).reshape(-1)

    def gradient(self, packed: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
        """Minibatch gradients of all clients at once, each times its ``scale`` if there is one: diag(scale) G.

        Shapes: packed (clients, width), x (clients, B, ...), y (clients, B), scale (clients,) -> (clients, width).
        """
        if self.model.is_linear and self.compute == self.dtype == x.dtype:
            return linear_gradient(self.model, packed, x, y, self._share, scale)
        if self.stacked is not None:
            out = torch.zeros_like(packed)
            self.stacked.gradient(packed, x, y, out)
            return out if scale is None else out.mul_(scale[:, None])
        point, x = packed.to(self.compute), x.to(self.compute)
        if self.model.is_linear:
            out = linear_gradient(self.model, point, x, y, self._share)
        elif self._one_by_one:
            out = looped_gradient(self.model, point, x, y, scale)
        else:
            objective = vmap(grad(self.model.objective), chunk_size=_CLIENTS_AT_ONCE)
            out = objective(point, x, y)
        out = out.to(self.dtype)
        return out if scale is None else out.mul_(scale[:, None])

    def minibatch(
        self, order: Tensor, rows: Tensor, homes: Tensor, at: Tensor, active: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The first ``active`` clients of ``order`` at an iteration of a block, their homes, inputs and targets.

        Shapes: order (T, clients), rows (T, drawn clients, B), homes (T, clients or more), at (1,) the iteration's
        number in the block -> (active,), (active,), (active, B, ...), (active, B).
        """
        if self.stacked is not None and gather.available(self.x):
            normalizing = self.scale, self.shift
            return gather.minibatch(self.x, self.y, *normalizing, self.batch_of, order, rows, homes, at, active)
        who = order.index_select(0, at)[0, :active]
        home = homes.index_select(0, at)[0].index_select(0, who).long()
        mine = rows.index_select(0, at)[0].index_select(0, self.batch_of.index_select(0, who))
        return who, home, self.inputs(mine), self.targets(mine)

    def gradients(
        self,
        packed: Tensor,
        home: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        ready: Callable[[int, int], None] | None = None,
        aside: torch.cuda.Stream | None = None,
    ) -> None:
        """Gradients of some clients of a network, whose models are rows ``home`` of ``packed``, at once.

        ``ready(first, last)`` is called as soon as columns first … last − 1 of ``out`` are on their way, and what reads
        these columns of the models, on the current stream or on ``aside``, a stream that parts of the work may use (see
        `Stacked.gradient`).
        Shapes: packed (rows, width), home (some,), x (some, B, ...), y (some, B), out (some, width).
        """
        if self.stacked is not None:
            self.stacked.gradient(packed, x, y, out, home, ready, aside)
            return
        out.copy_(self.gradient(packed.index_select(0, home), x, y))
        if ready is not None:
            ready(0, self.width)

    def evaluate(self, theta: Tensor, run: int) -> Evaluation:
        """Models of one run on its test set. Shapes: theta (models, p) -> (models,) each."""
        with torch.no_grad():
            return self.judge(self.pack(theta), self.dataset_of_run[run])

    def judge(self, packed: Tensor, dataset: int, check: Check | None = None) -> Evaluation:
        """Evaluate packed models on the test set of one of the datasets, batch by batch; nothing leaves the device.

        What linear models give on the CPU does not depend on which others are evaluated with them, to the bit.

        Args:
            packed: models, (models, width).
            dataset: the number of the dataset.
            check: called before every batch, `batches` times in all.
        """
        x, target = self._tests[dataset]
        classes = self.datasets[dataset].classes
        loss = torch.zeros(len(packed), dtype=torch.float64, device=packed.device)
        right = torch.zeros_like(loss)
        samples, models = self._batch(len(packed), len(x))
        queue = _Queue(self.device if check else None)
        with torch.no_grad():
            for m in range(0, len(packed), models):
                some = self._judgeable(packed[m : m + models], samples)
                count = min(models, len(packed) - m)
                losses: Tensor | None = None  # of the samples at each place of a batch, added over the batches
                along = 0
                for s in range(0, len(x), samples):
                    if check:
                        check()
                    scores, along = self._scores(some, count, x[s : s + samples])
                    here = target[s : s + samples].unsqueeze(1 - along).expand(scores.shape[:2])
                    each = LOSSES[self.model.loss](scores, here)
                    losses = each.double() if losses is None else _added(losses, each, along)
                    if classes is not None:
                        guess = scores[..., :classes].argmax(dim=-1)
                        right[m : m + models] += (guess == here).sum(dim=along)
                    queue.put()
                if losses is not None:
                    loss[m : m + models] = ordered_sum(losses, along)
        return Evaluation(None if classes is None else right / len(x), loss / len(x))

    def batches_of(self, models: int, dataset: int) -> int:
        """In how many batches `judge` evaluates some models."""
        count = len(self._tests[dataset][0])
        samples, together = self._batch(max(models, 1), count)
        return -(-models // together) * -(-count // samples)

    def _batch(self, models: int, count: int) -> tuple[int, int]:
        """How many samples and models to evaluate at a time."""
        if self.stacked is not None:
            together, samples = self.stacked.chunks(models, count, torch.finfo(self.dtype).bits // 8)
            return samples, together
        return self._chunks(count)

    def _chunks(self, count: int) -> tuple[int, int]:
        """How many samples and models to evaluate at a time: by scores for linear models, else by inputs."""
        if self.model.is_linear:
            at_once = _SCORES_AT_ONCE[self.device.type]
            samples = min(count, 512) if self.device.type == "cpu" else count  # few stay in the cache
            return samples, max(1, at_once // (self.model.outputs * samples))
        samples = min(count, 256)
        return samples, max(1, 8 * _NUMBERS_AT_ONCE // (samples * self.x[0].numel()))

    def _judgeable(self, packed: Tensor, samples: int) -> Tensor:
        """Packed models as `_scores` takes them: of linear ones all rows of weights, padded on the CPU."""
        if not self.model.is_linear:
            return packed
        weights = packed.reshape(-1, self.stride)
        if self.device.type != "cpu":
            return weights
        rows = -(-samples // _ROWS) * _ROWS
        return _padded(weights, _columns(weights.dtype, rows, len(weights), self.stride, torch.get_num_threads()))

    def _scores(self, some: Tensor, count: int, x: Tensor) -> tuple[Tensor, int]:
        """Scores of ``count`` models, and which of the first two axes is that of the samples.

        Shapes: some: what `_judgeable` gives, x (samples, ...)
        -> (models, samples, outputs) or (samples, models, outputs).
        """
        if self.stacked is not None:
            return self.stacked.scores(some, x), 1
        if self.model.is_linear:
            rows = x if self.device.type != "cpu" else _padded(x, _ROWS)
            flat = rows @ some.T  # one product for all models
            return flat[: len(x), : count * self.model.outputs].view(len(x), count, -1), 0
        if self._one_by_one:
            return torch.stack([self._judged.scores(one, x) for one in some]), 1
        return vmap(self._judged.scores, in_dims=(0, None))(some, x), 1


def evaluated_samples(count: int, samples: int) -> np.ndarray | None:
    """The test samples that are evaluated, in order; None where all ``count`` of them are.

    The draw is that of the test set alone: the same for every algorithm, seed and study.
    """
    if not 0 < samples < count:
        return None
    return np.sort(rng.permutation(0, Stream.EVAL_SAMPLE, count)[:samples])


def evaluated_clients(seed: int, count: int, clients: int) -> np.ndarray | None:
    """The clients of a run that are evaluated, in order; None where all ``count`` of them are.

    The same for all algorithms of a seed.
    """
    if not 0 < clients < count:
        return None
    drawn = rng.uniform(seed, Stream.EVAL_CLIENT, np.arange(count))[:, 0]
    return np.sort(np.argsort(drawn, kind="stable")[:clients])


def ordered_sum(values: Tensor, dim: int) -> Tensor:
    """Sum over an axis; on the CPU by additions in pairs, whose order depends on the length of that axis alone.

    PyTorch's own sums on the CPU depend on the other axes and on the number of threads.
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


@dataclass(frozen=True, eq=False)
class _Shards:
    """Where clients find their samples: client i of a seed holds order[offset : offset + size]."""

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

    def __init__(self, problem: Problem, rows: Tensor) -> None:
        self.rows = rows
        self._problem = problem
        self._y = problem.targets(rows).unbind()
        numbers = rows[0].numel() * problem.x[0].numel()
        self._stride = max(1, _NUMBERS_AT_ONCE // numbers)
        self._start, self._x = -1, rows.unbind()

    def __getitem__(self, t: int) -> tuple[Tensor, Tensor]:
        start = t - t % self._stride
        if start != self._start:
            self._start, self._x = start, self._problem.inputs(self.rows[start : start + self._stride]).unbind()
        return self._x[t - start], self._y[t]
