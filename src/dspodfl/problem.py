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
from torch import Tensor
from torch.func import grad, vmap

from dspodfl import rng
from dspodfl.data.dataset import Dataset, Federation
from dspodfl.models import LOSSES, Model
from dspodfl.rng import Stream

_SCORES_AT_ONCE = 16_000_000
"""Scores held at a time while evaluating (64 MB in float32)."""


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
        train = [self._tensors(d.normalized(d.x_train), d.y_train) for d in self.datasets]
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
        self._gradient = vmap(grad(self.model.objective))

    def _number(self, dataset: Dataset) -> int:
        for number, known in enumerate(self.datasets):
            if known is dataset:
                return number
        self.datasets.append(dataset)
        return len(self.datasets) - 1

    def _tensors(self, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = torch.from_numpy(x)
        if self.model.is_linear:
            inputs = inputs.flatten(1)
        return inputs.to(self.device), torch.from_numpy(y).to(self.device)

    def minibatches(self, k: np.ndarray) -> Tensor:
        """Training rows in every client's minibatch. Shapes: (iterations,) -> (iterations, clients, B)."""
        drawn = [shards.draw(k, self.batch_size) for shards in self._groups]
        return torch.cat([drawn[group] for group in self._group_of_run], dim=1)

    def gradient(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Minibatch gradients of all clients at once. Shapes: theta (clients, p), rows (clients, B) -> (clients, p)."""
        x = self.x.index_select(0, rows.reshape(-1)).to(self.compute)
        x = x.view(*rows.shape, *self.x.shape[1:])
        y = self.y[rows]
        y = y.to(self.compute) if y.is_floating_point() else y
        point = theta.to(self.compute)
        closed = self.model.is_linear
        out = linear_gradient(self.model, point, x, y) if closed else self._gradient(point, x, y)
        return out.to(self.dtype)

    def evaluate(self, theta: Tensor, run: int) -> Evaluation:
        """Models of one run on its whole test set. Shapes: theta (models, p) -> (models,) each."""
        dataset = self.datasets[self.dataset_of_run[run]]
        x, y = self._tests[self.dataset_of_run[run]]
        x = x.to(self.compute)
        target = y.to(self.compute) if y.is_floating_point() else y
        loss = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        right = torch.zeros_like(loss)
        with torch.no_grad():
            point = theta.to(self.compute)
            outputs = max(1, self.model.outputs)
            samples = min(len(x), max(1, _SCORES_AT_ONCE // outputs // 64)) if not self.model.is_linear else len(x)
            models = max(1, _SCORES_AT_ONCE // (outputs * samples))
            if not self.model.is_linear:
                samples, models = min(samples, 256), min(models, 64)
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

    def _scores(self, theta: Tensor, x: Tensor) -> Tensor:
        """Shapes: theta (models, p), x (samples, ...) -> (models, samples, outputs)."""
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


def linear_parts(model: Model, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights (clients, outputs, features) and biases (clients, outputs) inside θ = [W, b]; views."""
    parts = list(model.unflatten(theta).values())
    return parts[0], parts[1] if len(parts) > 1 else None


def linear_gradient(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Closed-form minibatch gradients of linear models: ∇W = (1/B) Σ_b (∂ℓ/∂s_b) x_bᵀ.

    Scores are kept as (clients, outputs, batch), which lets every product run over contiguous features.
    Shapes: theta (clients, p), x (clients, B, features), y (clients, B) -> (clients, p).
    """
    weight, bias = linear_parts(model, theta)
    scores = torch.bmm(weight, x.transpose(1, 2))
    if bias is not None:
        scores = scores + bias[:, :, None]
    slope = SLOPES[model.loss](scores, y) / x.shape[1]
    flat = torch.bmm(slope, x).flatten(1)
    if bias is not None:
        flat = torch.cat([flat, slope.sum(dim=2)], dim=1)
    return torch.add(flat, theta, alpha=model.l2) if model.l2 else flat


def _hinge_slope(scores: Tensor, y: Tensor) -> Tensor:
    """∂/∂s of (1/C) Σ_{c≠y} max(0, 1 − s_y + s_c). Shapes: (clients, C, B), (clients, B) -> (clients, C, B)."""
    label = y[:, None, :]
    inside = (scores - scores.gather(1, label) > -1).to(scores.dtype).scatter_(1, label, 0.0)
    return inside.scatter_(1, label, -inside.sum(dim=1, keepdim=True)).div_(scores.shape[1])


def _cross_entropy_slope(scores: Tensor, y: Tensor) -> Tensor:
    label = y[:, None, :]
    chance = torch.softmax(scores, dim=1)
    return chance.scatter_add_(1, label, -torch.ones_like(label, dtype=chance.dtype))


SLOPES = {
    "hinge": _hinge_slope,
    "cross_entropy": _cross_entropy_slope,
    "squared_error": lambda scores, y: scores - y[:, None, :],
}
"""∂ℓ/∂s per sample, for scores laid out as (clients, outputs, batch)."""
