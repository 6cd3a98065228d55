"""GradSkip: Scaffnew where clients with easy problems compute fewer gradients between two averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspodfl.algorithms.common_draw import PROBABILITY as DEFAULT
from dspodfl.algorithms.corrections import PROBABILITY, is_number
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.errors import InputError
from dspodfl.rng import Stream, bernoulli

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step
    from dspodfl.network import Rates, WeightedTopology


def _are_probabilities(value: Any) -> bool:
    some = value if isinstance(value, list | tuple) else [value]
    return len(some) > 0 and all(is_number(q) and 0 <= q <= 1 for q in some)


ENTRY = Entry(
    label="GradSkip",
    line="Scaffnew in which a client stops computing until the next average, once it draws so; exact",
    schedule="dspodfl.algorithms.common_draw:skipping",
    rule=f"{__name__}:GradSkip",
    settings={
        "probability": PROBABILITY,
        "q": Setting(
            line="with which probability a client goes on computing: one number, or one for each client",
            allowed="a number in [0, 1], or a list of one for each client",
            check=_are_probabilities,
        ),
    },
    reference="Maranjyan, Safaryan and Richtárik, GradSkip, 2022",
    order=26,
    exact=True,
    sends="1 model to every other client",
    sporadic=False,
    takes_local=False,
    update="η_i = 1 with probability q_i\nĥ_i = h_i if η_i = 1, else ∇F_i(θ_i)\nΘ̂ = Θ − α(G − ĥ)\n"
    "Θ ← J(Θ̂ − (α/ϖ) ĥ) with probability ϖ, else Θ̂\nh ← ĥ + (ϖ/α)(Θ⁺ − Θ̂)",
    when="Clients' problems are of unequal condition κ_i, and gradients are dear: q_i = (1 − 1/κ_i)/(1 − 1/κ_max), "
    'ϖ = 1/√κ_max, α = min_i (1/L_i) ϖ²/(1 − q_i(1 − ϖ²)). It needs full gradients (train.batch_size = "full"). '
    "With q = 1, its default, no client skips: Scaffnew. It runs on the complete graph.",
)


@dataclass(frozen=True)
class GradSkip:
    """The lazy form: a client that has drawn η_i = 0 stands still with h_i = its gradient, and computes no more.

    The schedule (`dspodfl.algorithms.common_draw.Skipping`) says who computes, by the same draws η_i.
    """

    probability: float = DEFAULT
    q: float | Sequence[float] = 1.0

    def init(self, theta: Tensor, links: int) -> Tensor:
        """H = 0."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, h: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration; one gradient of each client that computes."""
        gradient = at.gradient(theta, at.v)
        skips = (at.v > 0) & ~self._go_on(at)
        h = gradient.where(skips, h)
        theta = theta - at.lr * at.v * (gradient - h)
        weight = self.probability / at.lr
        new = at.mix(theta - h / weight).where(at.linked, theta)
        return new, (h + weight * (new - theta)).where(at.linked, h)

    def _go_on(self, at: Step) -> Tensor:
        """η_i of each client. Shape: (clients, 1), bool."""
        word = at.words(Stream.SGD, 1)
        if isinstance(self.q, int | float):
            return bernoulli(word, float(self.q))
        q = at.lr.new_tensor(self.q, dtype=_double())[at.client[:, 0]]
        return bernoulli(word, q[:, None])

    def check(self, topology: WeightedTopology, rates: Rates) -> None:
        """Refuse a list of q that is not as long as there are clients.

        Args:
            topology: The graph.
            rates: Not read.

        Raises:
            InputError: There are more or fewer.
        """
        if not isinstance(self.q, int | float) and len(self.q) != topology.graph.n:
            allowed = f"one number, or one for each of the {topology.graph.n} clients"
            raise InputError("algorithms.settings.q", f"{len(self.q)} numbers", allowed)


def _double() -> Any:
    import torch

    return torch.float64
