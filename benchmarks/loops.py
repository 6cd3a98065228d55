"""What others write: plain PyTorch loops over clients, the measure of the stacked engine. All of them do DGD."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.data import DataLoader, Subset, TensorDataset

from dspodfl.engine import Run
from dspodfl.network.weights import matrix
from dspodfl.problem.models import Model

LOSSES = {"hinge": nn.MultiMarginLoss, "cross_entropy": nn.CrossEntropyLoss}
"""PyTorch's own, one operation each; both average over the samples."""


class _Loop:
    """Samples, modules that start from one model, and mixing weights."""

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        self.model, self.batch_size, self.device = model, batch_size, torch.device(device)
        dataset = run.data.dataset
        self.x, self.y = torch.from_numpy(dataset.normalized(dataset.x_train)), torch.from_numpy(dataset.y_train)
        self.lr = float(run.learning_rate(np.zeros(1, dtype=np.int64))[0])
        self.loss = LOSSES[model.loss]()
        self.shards = run.data.shards
        graph = run.rates.graph
        _, weight, _ = run.topology.at(np.zeros(1, dtype=np.int64))
        self.p = torch.from_numpy(matrix(graph.n, graph.edges, weight[0])).float()
        self.start = model.initial(run.seed)

    def modules(self) -> list[nn.Module]:
        """A module a client, all with the common initial model."""
        one = copy.deepcopy(self.model.module).to_empty(device=self.device)
        one.load_state_dict(self.model.unflatten(self.start), strict=False)
        return [copy.deepcopy(one) for _ in self.shards]

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        raise NotImplementedError

    def iterate(self) -> None:
        """One iteration."""
        raise NotImplementedError

    def on_device(self) -> None:
        """Take the samples, and which of them each client holds, to where they are used."""
        self.x, self.y, self.p = (tensor.to(self.device) for tensor in (self.x, self.y, self.p))
        self.held = [torch.from_numpy(shard).to(self.device) for shard in self.shards]
        self.sizes = torch.tensor([len(shard) for shard in self.shards], device=self.device)

    def drawn(self) -> Tensor:
        """Places in their shards of the samples of all clients, with replacement. Shape: (clients, B)."""
        draws = torch.rand(len(self.shards), self.batch_size, device=self.device)
        return (draws * self.sizes[:, None]).long()


class CarefulLoop(_Loop):
    """As a careful person writes it: a module and an optimizer a client, one matrix product for mixing.

    Data are tensors on the device, indices are drawn in one call an iteration, and the loss is one fused operation.
    """

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        self.models = self.modules()
        self.on_device()
        if model.is_linear:  # nothing but its one layer
            self.x = self.x.flatten(1)
            self.models = [next(part for part in m.modules() if isinstance(part, nn.Linear)) for m in self.models]
        self.optimizers = [torch.optim.SGD(module.parameters(), lr=self.lr) for module in self.models]

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return torch.stack([nn.utils.parameters_to_vector(module.parameters()) for module in self.models]).detach()

    def iterate(self) -> None:
        """Θ ← PΘ − αG."""
        rows = self.drawn()
        for i, (module, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            index = self.held[i][rows[i]]
            optimizer.zero_grad()
            self.loss(module(self.x[index]), self.y[index]).backward()
        with torch.no_grad():
            for module, mixed in zip(self.models, self.p @ self.vectors(), strict=True):
                nn.utils.vector_to_parameters(mixed, module.parameters())
        for optimizer in self.optimizers:
            optimizer.step()


class ResearchLoop(_Loop):
    """The habit of research code: a client at a time, everything allocated again, state dictionaries averaged.

    Such code steps first and averages after, Θ ← P(Θ − αG): the engine's adapt_then_combine.
    """

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        samples = TensorDataset(self.x, self.y)
        self.subsets = [Subset(samples, shard.tolist()) for shard in self.shards]
        self.models = self.modules()
        linked = [torch.nonzero(row).flatten().tolist() for row in self.p]
        self.neighbours = [[(j, float(self.p[i, j])) for j in some] for i, some in enumerate(linked)]

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return torch.stack([nn.utils.parameters_to_vector(module.parameters()) for module in self.models]).detach()

    def iterate(self) -> None:
        """Θ ← P(Θ − αG)."""
        for module, subset in zip(self.models, self.subsets, strict=True):
            loader = DataLoader(subset, batch_size=self.batch_size, shuffle=True)
            x, y = next(iter(loader))
            optimizer = torch.optim.SGD(module.parameters(), lr=self.lr)
            optimizer.zero_grad()
            self.loss(module(x.to(self.device)), y.to(self.device)).backward()
            optimizer.step()
        states = [copy.deepcopy(module.state_dict()) for module in self.models]
        for module, linked in zip(self.models, self.neighbours, strict=True):
            average = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
            for j, weight in linked:
                for name, value in states[j].items():
                    average[name] += weight * value
            module.load_state_dict(average)


class VmapLoop(_Loop):
    """All clients in one batch by `torch.func`: one vmap of grad, one matrix product."""

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        self.on_device()
        self.theta = self.start.to(self.device).repeat(len(self.shards), 1)
        self.order = torch.cat(self.held)
        self.offset = torch.cumsum(self.sizes, 0) - self.sizes
        self.gradient = vmap(grad(model.objective))

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return self.theta

    def iterate(self) -> None:
        """Θ ← PΘ − αG."""
        index = self.order[self.offset[:, None] + self.drawn()]
        gradients = self.gradient(self.theta, self.x[index], self.y[index])
        self.theta = torch.addmm(gradients, self.p, self.theta, beta=-self.lr)
