"""The problem that the clients solve: their samples, the gradients of a stack of clients, and how good models are.

    g_i = ∇F_i(θ_i; ξ_i),    ξ_i: a minibatch drawn uniformly with replacement from client i's shard

Sample n of the minibatch of client i at iteration k is the index at address (seed, BATCH, i, k, slot n): it does
not depend on the algorithm, so comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dspodfl import rng
from dspodfl.data.dataset import Dataset, Federation
from dspodfl.models import LOSSES, Model
from dspodfl.rng import Stream

_SCORES_AT_ONCE = 16_000_000
"""Scores held at a time while evaluating (64 MB in float32)."""
_SUM = 2  # PyTorch's number for reduction = "sum"
_NUMBERS_AT_ONCE = 500_000
"""Inputs gathered at a time while training (2 MB in float32), one iteration's at least."""


@dataclass(frozen=True)
class Evaluation:
    """How each model does on the test set of its run: accuracy (models,) or None, mean loss (models,); float64."""

    accuracy: Tensor | None
    loss: Tensor


class Problem:
    """The samples of a stack of runs on a device, and the model that all of them train.

    Runs come as (seed, federation); clients are stacked in run order. Runs that share seed and federation share
    their minibatches, which are drawn once.
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
    ) -> None:
        self.device, self.dtype, self.compute = torch.device(device), dtype, compute or dtype
        self.model = model.to(self.device, self.compute)
        self.batch_size = batch_size
        self.datasets: list[Dataset] = []
        self.dataset_of_run = [self._number(federation.dataset) for _, federation in runs]
        train = [self._tensors(d.normalized(d.x_train), d.y_train, training=True) for d in self.datasets]
        self.x = torch.cat([x for x, _ in train]) if len(train) > 1 else train[0][0]
        self.y = torch.cat([y for _, y in train]) if len(train) > 1 else train[0][1]
        self._tests = [self._tensors(d.normalized(d.x_test), d.y_test) for d in self.datasets]
        starts = np.cumsum([0, *(len(d.x_train) for d in self.datasets)])
        self._groups: list[_Shards] = []
        self._group_of_run: list[int] = []
        known: dict[tuple[int, int], int] = {}
        for (seed, federation), dataset in zip(runs, self.dataset_of_run, strict=True):
            key = (seed, id(federation))
            if key not in known:
                known[key] = len(self._groups)
                self._groups.append(_Shards.of(federation, seed, int(starts[dataset]), self.device))
            self._group_of_run.append(known[key])
        convolves = any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in self.model.module.modules())
        self._one_by_one = convolves and self.device.type == "cpu"  # where grouped convolutions are slower than a loop
        self._share = torch.tensor(1.0 / batch_size, dtype=self.compute, device=self.device)

    def _number(self, dataset: Dataset) -> int:
        for number, known in enumerate(self.datasets):
            if known is dataset:
                return number
        self.datasets.append(dataset)
        return len(self.datasets) - 1

    def _tensors(self, x: np.ndarray, y: np.ndarray, *, training: bool = False) -> tuple[Tensor, Tensor]:
        if self.model.is_linear:
            x = x.reshape(len(x), -1)
            if training and has_bias(self.model):  # NumPy's memory, which lies in huge pages where there are any
                x = np.concatenate([x, np.ones((len(x), 1), dtype=x.dtype)], axis=1)
        inputs = torch.from_numpy(x)
        return inputs.to(self.device), torch.from_numpy(y).to(self.device)

    def minibatches(self, k: np.ndarray) -> Tensor:
        """Training rows in every client's minibatch. Shapes: (iterations,) -> (iterations, clients, B)."""
        drawn = [shards.draw(k, self.batch_size) for shards in self._groups]
        return torch.cat([drawn[group] for group in self._group_of_run], dim=1)

    def batches(self, k: np.ndarray) -> Batches:
        """The minibatches of a block of iterations, ready to be taken one iteration at a time."""
        return Batches(self, self.minibatches(k))

    def pack(self, theta: Tensor) -> Tensor:
        """Models in the order that gradients are computed in: for linear models, each weight row beside its bias."""
        return theta[:, self._order(theta.device)] if self.model.is_linear else theta

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`. Shapes: (clients, p) -> (clients, p)."""
        return packed[:, torch.argsort(self._order(packed.device))] if self.model.is_linear else packed

    def _order(self, device: torch.device) -> Tensor:
        weight, bias = linear_parts(self.model, torch.arange(self.model.parameters, device=device)[None])
        return (weight if bias is None else torch.cat([weight, bias[:, :, None]], dim=2)).reshape(-1)

    def gradient(self, packed: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
        """Minibatch gradients of all clients at once, each times its ``scale`` if there is one: diag(scale) G.

        Shapes: packed (clients, p), x (clients, B, ...), y (clients, B), scale (clients,) -> (clients, p), packed.
        """
        if self.model.is_linear and self.compute == self.dtype == x.dtype:
            return linear_gradient(self.model, packed, x, y, self._share, scale)
        point, x = packed.to(self.compute), x.to(self.compute)
        if self.model.is_linear:
            out = linear_gradient(self.model, point, x, y, self._share)
        elif self._one_by_one:
            out = looped_gradient(self.model, point, x, y, scale)
        else:
            out = vmap(grad(self.model.objective))(point, x, y)
        out = out.to(self.dtype)
        return out if scale is None else out.mul_(scale[:, None])

    def evaluate(self, theta: Tensor, run: int) -> Evaluation:
        """Models of one run on its whole test set. Shapes: theta (models, p) -> (models,) each."""
        dataset = self.datasets[self.dataset_of_run[run]]
        x, y = self._tests[self.dataset_of_run[run]]
        x = x.to(self.compute)
        target = y.to(self.compute) if y.is_floating_point() else y
        loss = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        right = torch.zeros_like(loss)
        samples, models = self._chunks(len(x))
        with torch.no_grad():
            point = theta.to(self.compute)
            for m in range(0, len(theta), models):
                for s in range(0, len(x), samples):
                    scores = self._scores(point[m : m + models], x[s : s + samples])
                    here = target[s : s + samples].expand(len(scores), -1)
                    loss[m : m + models] += LOSSES[self.model.loss](scores, here).double().sum(dim=1)
                    if dataset.classes is not None:
                        guess = scores[..., : dataset.classes].argmax(dim=-1)
                        right[m : m + models] += (guess == here).sum(dim=1)
        accuracy = None if dataset.classes is None else (right / len(x)).cpu()
        return Evaluation(accuracy, (loss / len(x)).cpu())

    def _chunks(self, count: int) -> tuple[int, int]:
        """How many samples and models to evaluate at a time: by scores for linear models, else by inputs."""
        if self.model.is_linear:
            return count, max(1, _SCORES_AT_ONCE // (self.model.outputs * count))
        samples = min(count, 256)
        return samples, max(1, 8 * _NUMBERS_AT_ONCE // (samples * self.x[0].numel()))

    def _scores(self, theta: Tensor, x: Tensor) -> Tensor:
        """Shapes: theta (models, p), x (samples, ...) -> (models, samples, outputs)."""
        if self._one_by_one:
            return torch.stack([self.model.scores(one, x) for one in theta])
        if not self.model.is_linear:
            return vmap(self.model.scores, in_dims=(0, None))(theta, x)
        weight, bias = linear_parts(self.model, theta)
        flat = x @ weight.reshape(-1, x.shape[1]).T  # one product for all models
        scores = flat.view(len(x), len(theta), -1).transpose(0, 1)
        return scores if bias is None else scores + bias[:, None, :]


@dataclass(frozen=True, eq=False)
class _Shards:
    """Where a run's clients find their samples: client i holds order[offset_i : offset_i + size_i]."""

    seed: int
    order: Tensor
    offset: Tensor
    size: Tensor

    @staticmethod
    def of(federation: Federation, seed: int, start: int, device: torch.device) -> _Shards:
        sizes = federation.sizes
        order = np.concatenate(federation.shards) + start
        offset = np.cumsum(sizes) - sizes
        return _Shards(seed, *(torch.from_numpy(a).to(device) for a in (order, offset, sizes)))

    def draw(self, k: np.ndarray, batch_size: int) -> Tensor:
        at = torch.as_tensor(k, device=self.order.device)[:, None]
        client = torch.arange(len(self.size), device=self.order.device)
        words = rng.words(self.seed, Stream.BATCH, client, k=at, slots=batch_size)
        return self.order[self.offset[:, None] + rng.index_below(words, self.size[:, None])]


class Batches:
    """The minibatches of a block of iterations; inputs are gathered a few iterations at a time.

    Shapes: rows (iterations, clients, B); ``batches[t]`` is x (clients, B, ...) and y (clients, B).
    """

    def __init__(self, problem: Problem, rows: Tensor) -> None:
        self.rows = rows
        self._problem = problem
        y = problem.y.index_select(0, rows.reshape(-1)).view(rows.shape)
        self._y = (y.to(problem.compute) if y.is_floating_point() else y).unbind()
        numbers = rows[0].numel() * problem.x[0].numel()
        self._stride = max(1, _NUMBERS_AT_ONCE // numbers)
        self._start, self._x = -1, rows.unbind()

    def __getitem__(self, t: int) -> tuple[Tensor, Tensor]:
        start = t - t % self._stride
        if start != self._start:
            some = self.rows[start : start + self._stride]
            x = self._problem.x.index_select(0, some.reshape(-1))
            self._start, self._x = start, x.view(*some.shape, *self._problem.x.shape[1:]).unbind()
        return self._x[t - start], self._y[t]


def looped_gradient(model: Model, theta: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
    """Minibatch gradients client by client; those whose scale is 0 are left at 0. Shapes as `linear_gradient`."""
    out = torch.zeros_like(theta)
    wanted = range(len(theta)) if scale is None else torch.nonzero(scale).flatten().tolist()
    for i in wanted:
        point = theta[i].detach().requires_grad_()
        (out[i],) = torch.autograd.grad(model.objective(point, x[i], y[i]), point)
    return out


def has_bias(model: Model) -> bool:
    """Whether a linear model has biases besides its weights."""
    return len(model.shapes) > 1


def linear_parts(model: Model, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights (clients, outputs, features) and biases (clients, outputs) inside θ = [W, b]; views."""
    outputs, features = next(iter(model.shapes.values()))
    size = outputs * features
    weight = theta[:, :size].view(-1, outputs, features)
    return weight, theta[:, size:] if has_bias(model) else None


def linear_gradient(
    model: Model,
    packed: Tensor,
    x: Tensor,
    y: Tensor,
    share: Tensor,
    scale: Tensor | None = None,
) -> Tensor:
    """Closed-form minibatch gradients of linear models: ∇W = (1/B) Σ_b (∂ℓ/∂s_b) x_bᵀ, times scale.

    A bias is the weight of a last feature that is always 1, so weights and biases are one (outputs, features)
    matrix a client. Scores are kept as (clients, outputs, B): every product runs over contiguous features.
    Shapes: packed (clients, p), x (clients, B, features), y (clients, B), share () = 1/B, scale (clients,) ->
    (clients, p).
    """
    clients, _, features = x.shape
    scores = torch.bmm(packed.view(clients, -1, features), x.transpose(1, 2))
    slope = SLOPES[model.loss](scores, y, share)
    if scale is not None:
        slope *= scale.view(-1, 1, 1)
    out = torch.bmm(slope, x).view(packed.shape)
    if model.l2:
        out += model.l2 * packed if scale is None else (model.l2 * scale)[:, None] * packed
    return out


def _hinge_slope(scores: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """∂/∂s of (1/C) Σ_{c≠y} max(0, 1 − s_y + s_c): PyTorch's own backward kernel of that loss, one call for all."""
    clients, outputs, batch = scores.shape
    rows = scores.transpose(1, 2).reshape(-1, outputs)
    if rows.dtype == torch.bfloat16:  # which the kernel does not know
        rows, share = rows.float(), share.float()
    slope = torch.ops.aten.multi_margin_loss_backward(share, rows, y.view(-1), 1, 1.0, None, _SUM)
    slope = slope.view(clients, batch, outputs).transpose(1, 2)
    return slope if slope.dtype == scores.dtype else slope.to(scores.dtype)


def _cross_entropy_slope(scores: Tensor, y: Tensor, share: Tensor) -> Tensor:
    label = y[:, None, :]
    chance = torch.softmax(scores, dim=1)
    return chance.scatter_add_(1, label, -torch.ones_like(label, dtype=chance.dtype)).mul_(share)


SLOPES = {
    "hinge": _hinge_slope,
    "cross_entropy": _cross_entropy_slope,
    "squared_error": lambda scores, y, share: (scores - y[:, None, :]).mul_(share),
}
"""share · ∂ℓ/∂s per sample. Shapes: scores (clients, outputs, batch), y (clients, batch) -> as the scores."""
