"""RelaySGD: on a tree, clients pass models on as they are: each gets the mean of all, some iterations late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.step import PerLink
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step
    from dspodfl.network import Rates, WeightedTopology

COUNT_BYTES = 4
"""Bytes of the number of models in a message."""

ENTRY = Entry(
    label="RelaySGD",
    line="passes sums of models on through a tree; exact where every client steps, whatever links are silent",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:Relay",
    reference="Vogels, He, Koloskova, Lin, Karimireddy, Stich and Jaggi, NeurIPS 2021; silent links keep their last "
    "message",
    aliases=("relay_sgd", "relaysum"),
    order=520,
    sends="1 model and a count",
    update="Θ̂ = Θ − αVG\nm_ij = θ̂_i + Σ_{l≠j} m_li,  c_ij = 1 + Σ_{l≠j} c_li  where link (i, j) fires\n"
    "θ_i ← ((n − Σ_j c_ji) θ̂_i + Σ_j m_ji) / n  where i steps or a link of i fires",
    when="The graph is a tree, and data differ between clients: where every client steps, it goes to the minimizer of "
    "the mean. Where clients are sporadic it goes where busy clients pull it, as DSpodFL. Other graphs are refused.",
)


@dataclass(frozen=True)
class Relay:
    """Θ̂ = Θ − αVG;  θ_i ← ((n − Σ_j c_ji) θ̂_i + Σ_j m_ji) / n, with the last messages of silent links.

    A message is the sum of the sender's model and of all that it was sent last over its other links, and the number of
    models in it.
    """

    def init(self, theta: Tensor, links: int) -> Any:
        """Nothing was received: sums over links, and the last messages."""
        last = theta.new_zeros(2 * links, theta.shape[1]), theta.new_zeros(2 * links, 1)
        return (theta.new_zeros(theta.shape), theta.new_zeros(len(theta), 1)), PerLink(last)

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration."""
        received, last = state
        half = theta - at.gradient(theta, at.lr * at.v)
        _, last = at.exchange((half, *received), _send, _receive, last)
        assert last is not None
        models, counts = at.total(last)
        mean = ((at.n - counts) * half + models) / at.n
        return mean.where((at.v > 0) | at.linked, theta), ((models, counts), last)

    def check(self, topology: WeightedTopology, rates: Rates) -> None:
        """Refuse a graph that is not a tree.

        Args:
            topology: The links of the run.
            rates: Not read.

        Raises:
            InputError: The graph has a cycle, or is not connected.
        """
        graph = topology.graph
        if not graph.connected or graph.links != graph.n - 1:
            found = f"{graph.n} clients, {graph.links} links" + ("" if graph.connected else ", not connected")
            allowed = f"another algorithm: this one needs a tree, such as graph.kind = 'path' or 'star', not {found}"
            raise InputError("algorithms", "relay", allowed)

    def sent(self, p: int) -> int:
        """A model, and how many it is the sum of."""
        return FLOAT_BYTES * p + COUNT_BYTES


def _send(x: Any, last: Any) -> tuple[Tensor, Tensor]:
    """The own model and all that came over other links."""
    half, models, counts = x
    m, c = last
    return half + (models - m), 1 + (counts - c)


def _receive(x: Any, mine: Any, theirs: Any, last: Any, arc: Arc) -> tuple[Tensor, Any]:
    """Keep what was sent; nothing is added here, since silent links count too."""
    return mine[1][:, :0], theirs
