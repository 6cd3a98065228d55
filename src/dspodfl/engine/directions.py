"""The two directions of the links of directed runs: which there are, their weights, and what is counted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from dspodfl.engine.run import Run
    from dspodfl.engine.stack import Stack


class Directions:
    """The directions of the links of a stack in which some runs are directed.

    On an undirected run both directions fire together, and have the weight of the link.

    Args:
        stack: The runs.
        device: Where events are.
        dtype: Of the weights.
    """

    def __init__(self, stack: Stack, device: torch.device, dtype: torch.dtype) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        there = [run.rates.graph.both_ways().arcs for run in stack.runs]
        self._there = self._on_device(np.concatenate([arcs for arcs in there if arcs is not None]).T)
        symmetric = np.repeat([not run.directed for run in stack.runs], [run.rates.graph.links for run in stack.runs])
        self._symmetric = self._on_device(symmetric) if symmetric.any() else None
        self.counted = self._on_device(stack.counted)
        """The columns of [i → j of all links, j → i of all links] that are counted, run by run."""
        self._changing = any(run.directed and run.topology.time_varying_weights for run in stack.runs)
        self._found = self._weights(np.zeros(1, dtype=np.int64))

    def limit(self, v_hat: Tensor, back: Tensor) -> None:
        """Never fire a direction that is not there; fire both of a link of an undirected run together, in place.

        Shapes: (iterations, links) each, bool.
        """
        v_hat &= self._there[0]
        back &= self._there[1]
        if self._symmetric is not None:
            torch.where(self._symmetric, v_hat, back, out=back)

    def weights(self, k: np.ndarray, v_hat: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of what comes in at each end of a link: where columns sum to 1, and where rows do.

        Args:
            k: The iterations, (iterations,).
            v_hat: Which i → j fire, (iterations, links).
            back: Which j → i fire, likewise.

        Returns:
            0 where nothing comes in, (iterations, 2 · links) each; end 2e is at client i of link e = (i, j), i < j.
        """
        column, row = self._weights(k) if self._changing else self._found
        fires = torch.stack([back, v_hat], dim=2)  # what comes in at i, and at j
        return (fires * column).flatten(1), (fires * row).flatten(1)

    def _weights(self, k: np.ndarray) -> tuple[Tensor, Tensor]:
        """The weights of what comes in at i and at j, (iterations or 1, links, 2), by columns and by rows."""
        found = [_of_run(run, k) for run in self.stack.runs]
        length = max(len(column) for column, _ in found)
        column, row = (
            np.concatenate([np.broadcast_to(part[n], (length, *part[n].shape[1:])) for part in found], axis=1)
            for n in range(2)
        )
        return tuple(self._on_device(a[:, :, ::-1]).to(self.dtype) for a in (column, row))  # type: ignore[return-value]

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _of_run(run: Run, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of i → j and of j → i, (iterations or 1, links, 2), by columns and by rows."""
    if run.directed:
        found = run.topology.arcs_at(k)
        return found.column, found.row
    _, weight, _ = run.topology.at(k)
    both = np.stack([weight, weight], axis=2)
    return both, both
