"""Mixing weights r_ij and the matrix P(k) that links firing at k make of them.

p_ij = r_ij v̂_ij,  i ≠ j;        p_ii = 1 − Σ_j r_ij v̂_ij                            (eq. p of the paper)

To add a rule, add a function here under ``@WEIGHTS.register()``: its docstring's line is what users read.
Configuration, docs and ``dspodfl list`` follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dspodfl.errors import InputError, Registry

Floats = NDArray[np.float64]

WEIGHTS: Registry[Floats] = Registry("graph.weights", context=("degree", "largest"))
"""The rules of weights: r_ij of every link, (..., links). Context: ``degree`` of the clients, (..., n), and ``largest``
of the two degrees of each link, (..., links). The docstring
is the formula, the line says more. Facts: ``equal_degrees``, whether it needs all degrees to be equal."""


def degrees(n: int, edges: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Count the neighbours of each client over the present links.

    Args:
        n: The number of clients.
        edges: The links, shape (links, 2).
        present: Which links exist, shape (..., links), bool.

    Returns:
        The degrees, shape (..., n), int64.
    """
    out = np.zeros((*present.shape[:-1], n), dtype=np.int64)
    flat = out.reshape(-1, n)
    for row, here in zip(flat, present.reshape(len(flat), len(edges)), strict=True):
        row += np.bincount(edges[here].ravel(), minlength=n)
    return out


def weights(kind: str, n: int, edges: np.ndarray, degree: np.ndarray) -> Floats:
    """Return r_ij of every link, from the clients' degrees in the graph that the weights follow.

    Where the degrees are those of all links given, the matrix with these entries and 1 − Σ_j r_ij on its diagonal is
    symmetric and doubly stochastic.

    Args:
        kind: A name of `WEIGHTS`.
        n: The number of clients.
        edges: The links, shape (links, 2).
        degree: The degrees of the clients, shape (..., n).

    Returns:
        The weights, shape (..., links).

    Raises:
        InputError: The rule needs equal degrees, and they are not equal.

    >>> weights("metropolis", 3, np.array([[0, 1], [1, 2]]), np.array([1, 2, 1])).round(3).tolist()
    [0.333, 0.333]
    """
    at_ends = degree[..., edges]  # (..., links, 2)
    largest = np.maximum(at_ends.max(axis=-1), 1)
    return np.asarray(WEIGHTS[kind].make({"degree": degree, "largest": largest}, {}))


@WEIGHTS.register(line="Metropolis–Hastings: 1 / (1 + max(|N_i|, |N_j|))")
def metropolis(largest: np.ndarray) -> Floats:
    """1/(1 + max(|N_i|, |N_j|))."""
    return np.asarray(1.0 / (1.0 + largest))


@WEIGHTS.register(line="half as bold: 1 / (2 max(|N_i|, |N_j|))")
def lazy_metropolis(largest: np.ndarray) -> Floats:
    """1/(2 max(|N_i|, |N_j|))."""
    return np.asarray(1.0 / (2.0 * largest))


@WEIGHTS.register(line="one weight for all: 1 / (1 + max_i |N_i|)")
def max_degree(degree: np.ndarray, largest: np.ndarray) -> Floats:
    """1/(1 + max_i |N_i|)."""
    return np.broadcast_to(1.0 / (1.0 + degree.max(axis=-1, keepdims=True)), largest.shape).copy()


@WEIGHTS.register(line="1 / (1 + |N_i|), for graphs where all clients have equally many neighbours", equal_degrees=True)
def equal_neighbour(degree: np.ndarray, largest: np.ndarray) -> Floats:
    """1/(1 + |N_i|) where all degrees are equal."""
    if (degree.max(axis=-1) != degree.min(axis=-1)).any():
        found = f"degrees from {degree.min()} to {degree.max()}"
        raise InputError(
            "graph.weights",
            "equal_neighbour",
            f"used with equal degrees (found {found}: not doubly stochastic); use metropolis here",
        )
    return np.asarray(1.0 / (1.0 + largest))


class ArcWeights(NamedTuple):
    """Weights of the directions i → j and j → i of each link, 0 where there is none."""

    column: Floats
    """1/(1 + out-degree of the sender), with which columns sum to 1, (iterations or 1, links, 2)."""
    row: Floats
    """1/(1 + in-degree of the receiver), with which rows sum to 1, (iterations or 1, links, 2)."""
    in_degree: np.ndarray
    """From how many clients each client receives, (iterations or 1, clients)."""


def arc_weights(n: int, edges: np.ndarray, arcs: np.ndarray) -> ArcWeights:
    """Return the weights of both directions of each link, from the directions there are.

    Args:
        n: The number of clients.
        edges: The links, shape (links, 2).
        arcs: Which of i → j and j → i there are, shape (links, 2) or (iterations, links, 2), bool.

    Returns:
        The weights, and the in-degrees.

    >>> arc_weights(3, np.array([[0, 1], [0, 2]]), np.array([[True, False], [True, True]])).column.round(2).tolist()
    [[[0.33, 0.0], [0.33, 0.5]]]
    """
    here = arcs[None] if arcs.ndim == 2 else arcs
    sender, receiver = edges, edges[:, ::-1]  # of i → j, and of j → i
    out, into = (np.stack([np.bincount(ends[there], minlength=n) for there in here]) for ends in (sender, receiver))
    column = np.where(here, 1.0 / (1.0 + out[:, sender]), 0.0)
    return ArcWeights(column, np.where(here, 1.0 / (1.0 + into[:, receiver]), 0.0), into)


def matrix(n: int, edges: np.ndarray, active: np.ndarray) -> Floats:
    """Return the mixing matrix P from the active weights r_ij v̂_ij.

    Args:
        n: The number of clients.
        edges: The links, shape (links, 2).
        active: The weights of the links that fire, 0 of the others, shape (..., links).

    Returns:
        P, shape (..., n, n), doubly stochastic.

    >>> matrix(2, np.array([[0, 1]]), np.array([0.25])).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    i, j = edges.T
    p = np.zeros((*active.shape[:-1], n, n))
    p[..., i, j] = active
    p[..., j, i] = active
    diagonal = np.arange(n)
    p[..., diagonal, diagonal] = 1.0 - p.sum(axis=-1)
    return p
