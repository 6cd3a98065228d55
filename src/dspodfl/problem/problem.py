"""The problem that the clients solve: their samples, the gradients of a stack of clients, and how good models are.

g_i = ∇F_i(θ_i; ξ_i),    ξ_i: a minibatch drawn uniformly with replacement from client i's shard, or all of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dspodfl._kernels.cuda import minibatch as gather
from dspodfl.problem.data.dataset import Federation
from dspodfl.problem.evaluation import BatchEvaluator, Check, Evaluation
from dspodfl.problem.full_batch import FullBatch, Holdings
from dspodfl.problem.gradients import Gradients
from dspodfl.problem.models import Model
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.problem.packing import Packing
from dspodfl.problem.sampling import Batches, Minibatches, TrainingSamples, distinct_datasets


class Problem:
    """The samples of a stack of runs on a device, and the model that all of them train.

    It puts together `TrainingSamples` and `Minibatches` (sampling), `Packing`, `Gradients` and `BatchEvaluator`.
    Models are stored *packed*, in the order that gradients are computed in; rows of a packed matrix are ``width`` long.

    Args:
        model: the model.
        runs: (seed, federation) of each run; clients are stacked in this order.
        batch_size: samples in a minibatch; 0: no minibatches, gradients are those of all samples of a client.
        device: where everything is stored and computed.
        dtype: of the models.
        compute: the dtype that gradients are computed in; by default ``dtype``.
        tf32: compute products of float32 matrices in TF32 on a GPU.
        samples: test samples that models are evaluated on; 0: all.
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
        self.tf32, self.batch_size = tf32, batch_size
        self.model = model.to(self.device, self.compute)
        self.datasets, self.dataset_of_run = distinct_datasets([federation for _, federation in runs])
        self.stacked = _stacked_network(self.model, self.device, dtype, self.precision) if batch_size else None
        convolves = any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in self.model.module.modules())
        looped = convolves and self.device.type == "cpu"  # where grouped convolutions are slower than a loop
        self._packing = Packing(self.model, self.device, self.stacked)
        self._samples = TrainingSamples(
            self.datasets,
            self.model,
            self._packing,
            device=self.device,
            inputs=self.compute if self.stacked is None else torch.float32,
            targets=self.compute,
        )
        starts = np.cumsum([0, *(len(dataset.x_train) for dataset in self.datasets)])
        starts_of_runs = [int(starts[dataset]) for dataset in self.dataset_of_run]
        self._minibatches = Minibatches(runs, starts_of_runs, batch_size, self.device)
        self._gradients = Gradients(
            self.model,
            max(1, batch_size),
            device=self.device,
            dtype=dtype,
            compute=self.compute,
            stacked=self.stacked,
            looped=looped,
        )
        self.full: FullBatch | None = None
        """Computes exact gradients, where there are no minibatches."""
        if not batch_size:
            held = Holdings(*self._minibatches.held())
            how = {"dtype": dtype, "compute": self.compute}
            self.full = FullBatch(held, self._samples, self.model, looped=looped, **how)
        self._evaluator = BatchEvaluator(
            self.datasets,
            model.to(self.device, dtype),
            self._packing,
            device=self.device,
            dtype=dtype,
            samples=samples,
            stacked=self.stacked,
            looped=looped,
        )
        self.x, self.y = self._samples.x, self._samples.y
        self.scale, self.shift = self._samples.scale, self._samples.shift
        self.batch_of = self._minibatches.batch_of
        self.features, self.stride, self.width = self._packing.features, self._packing.stride, self._packing.width

    @property
    def precision(self) -> Literal["fp32", "tf32", "bf16"]:
        """How products of float32 matrices are computed on a GPU: fp32, tf32 or bf16."""
        return "bf16" if self.compute == torch.bfloat16 else "tf32" if self.tf32 else "fp32"

    def pack(self, theta: Tensor) -> Tensor:
        """Convert models to the packed order. Shapes: (clients, p) -> (clients, width)."""
        return self._packing.pack(theta)

    def unpack(self, packed: Tensor) -> Tensor:
        """Convert packed models back to the flat order. Shapes: (clients, width) -> (clients, p)."""
        return self._packing.unpack(packed)

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs of training samples. Shapes: (...) -> (..., *input_shape), or (..., stride) if linear."""
        return self._samples.inputs(rows)

    def targets(self, rows: Tensor) -> Tensor:
        """Return the labels or targets of training samples, in the shape of ``rows``."""
        return self._samples.targets(rows)

    def draws(self, k: np.ndarray) -> Tensor:
        """Draw the training rows of the minibatches, once for runs that share them.

        Shapes: (iterations,) -> (iterations, drawn clients, B), int32.
        """
        return self._minibatches.draws(k)

    def minibatches(self, k: np.ndarray) -> Tensor:
        """Draw the training rows of every client's minibatch. Shapes: (iterations,) -> (iterations, clients, B)."""
        return self._minibatches.rows(k)

    def batches(self, k: np.ndarray) -> Batches:
        """Return the minibatches of a block of iterations, ready to be taken one iteration at a time."""
        return Batches(self._samples, self.minibatches(k))

    def minibatch(
        self, order: Tensor, rows: Tensor, row_index: Tensor, at: Tensor, active: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first ``active`` clients of ``order`` at an iteration of a block, with their minibatches.

        Returned are the clients, the row index of each one's model, inputs and targets.
        Shapes: order (T, clients), rows (T, drawn clients, B), row_index (T, clients or more), at (1,) the iteration's
        number in the block -> (active,), (active,), (active, B, ...), (active, B).
        """
        if self.stacked is not None and gather.available(self.x):
            normalizing = self.scale, self.shift
            return gather.minibatch(self.x, self.y, *normalizing, self.batch_of, order, rows, row_index, at, active)
        who = order.index_select(0, at)[0, :active]
        model_row = row_index.index_select(0, at)[0].index_select(0, who).long()
        mine = rows.index_select(0, at)[0].index_select(0, self.batch_of.index_select(0, who))
        return who, model_row, self.inputs(mine), self.targets(mine)

    def gradient(self, packed: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute the minibatch gradients of all clients, each times its ``scale`` if there is one.

        Shapes: packed (clients, width), x (clients, B, ...), y (clients, B), scale (clients,) -> (clients, width).
        """
        return self._gradients.of_all(packed, x, y, scale)

    def gradients(
        self,
        packed: Tensor,
        model_row: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        ready: Callable[[int, int], None] | None = None,
        aside: torch.cuda.Stream | None = None,
    ) -> None:
        """Compute the gradients of some clients of a network; see `Gradients.of_some`.

        Shapes: packed (rows, width), model_row (some,), x (some, B, ...), y (some, B), out (some, width).
        """
        self._gradients.of_some(packed, model_row, x, y, out, ready, aside)

    def evaluate(self, theta: Tensor, run: int) -> Evaluation:
        """Evaluate models of one run on its test set. Shapes: theta (models, p) -> (models,) each."""
        with torch.no_grad():
            return self.evaluate_packed(self.pack(theta), self.dataset_of_run[run])

    def evaluate_packed(self, packed: Tensor, dataset: int, check: Check | None = None) -> Evaluation:
        """Evaluate packed models on the test set of one of the datasets, batch by batch; nothing leaves the device.

        What linear models give on the CPU does not depend on which others are evaluated with them, to the bit.

        Args:
            packed: models, (models, width).
            dataset: the number of the dataset.
            check: called before every batch, `batches_of` times in all.
        """
        return self._evaluator.evaluate(packed, dataset, check)

    def batches_of(self, models: int, dataset: int) -> int:
        """Count the batches in which `evaluate_packed` evaluates some models."""
        return self._evaluator.batches(models, dataset)


def _stacked_network(
    model: Model, device: torch.device, dtype: torch.dtype, precision: Literal["fp32", "tf32", "bf16"]
) -> Stacked | None:
    """Return the network as the GPU computes it; None where it does not, or not in ``dtype``."""
    if device.type != "cuda" or model.is_linear or dtype != torch.float32:
        return None
    return Stacked.of(model, precision)
