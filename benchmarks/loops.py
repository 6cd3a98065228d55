"""What others write: plain PyTorch loops over clients, the measure of the stacked engine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dspodfl.engine import Run
from dspodfl.mixing import matrix


class CarefulLoop:
    """DGD as a careful person writes it: a module and an optimizer a client, one matrix product for mixing.

    Data are tensors in memory, indices are drawn in one call an iteration, and the loss is one fused operation.
    """

    def __init__(self, run: Run, batch_size: int = 16, lr: float = 0.01) -> None:
        dataset = run.data.dataset
        self.x = torch.from_numpy(dataset.normalized(dataset.x_train)).flatten(1)
        self.y = torch.from_numpy(dataset.y_train)
        self.shards = [torch.from_numpy(shard) for shard in run.data.shards]
        self.sizes = torch.tensor([len(shard) for shard in self.shards])
        self.batch_size = batch_size
        torch.manual_seed(0)
        features, classes = self.x.shape[1], dataset.outputs
        self.models = [nn.Linear(features, classes) for _ in self.shards]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for model in self.models]
        self.loss = nn.MultiMarginLoss()
        graph = run.rates.graph
        _, weight, _ = run.wiring.at(np.zeros(1, dtype=np.int64))
        self.p = torch.from_numpy(matrix(graph.n, graph.edges, weight[0])).float()

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return torch.stack([nn.utils.parameters_to_vector(model.parameters()) for model in self.models])

    def iterate(self) -> None:
        """Θ ← PΘ − αG."""
        draws = torch.rand(len(self.models), self.batch_size)
        rows = (draws * self.sizes[:, None]).long()
        for i, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            index = self.shards[i][rows[i]]
            optimizer.zero_grad()
            self.loss(model(self.x[index]), self.y[index]).backward()
        with torch.no_grad():
            for model, mixed in zip(self.models, self.p @ self.vectors(), strict=True):
                nn.utils.vector_to_parameters(mixed, model.parameters())
        for optimizer in self.optimizers:
            optimizer.step()
