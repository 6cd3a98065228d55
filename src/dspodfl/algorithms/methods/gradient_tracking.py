"""Gradient tracking: each client follows the average gradient of all, and steps along what it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dspodfl.algorithms.base import FLOAT_BYTES, TRACKING
from dspodfl.algorithms.entry import Entry, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

FORMS = ("diging", "atc", "aug_dgm")

ENTRY = Entry(
    label="Gradient tracking",
    line="steps along a tracker of the average gradient; exact although clients and links are sporadic",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:Tracking",
    settings={
        "form": Setting(
            line="Θ ← PΘ − αVY (diging), Θ ← P(Θ − αVY) (atc), or the latter with Y mixed before use (aug_dgm)",
            allowed=f"one of {', '.join(FORMS)}",
            check=lambda value: value in FORMS,
        )
    },
    reference="Nedić, Olshevsky and Shi, SIAM J. Optim. 2017; Xu et al., CDC 2015 (Aug-DGM); Pu and Nedić, 2021",
    aliases=("dsgt", "diging", "gt"),
    order=20,
    exact=True,
    sends="2 models",
    takes_local=False,
    update="Θ ← PΘ − αVY\nY ← PY + H⁺ − H,  H: the last gradient of each client",
    when="Clients hold different data and are sporadic: it converges to the minimizer of the mean, where DSpodFL goes "
    "to the one that busy clients pull it to. It sends twice as much.",
)


@dataclass(frozen=True)
class Tracking:
    """Θ ← PΘ − αVY,  Y ← PY + H⁺ − H, where H holds each client's last gradient.

    The sum of Y over clients is always that of H. A client that does not compute keeps its last gradient, and what it
    steps along vanishes at the solution: the method is exact under any mixture of sporadic clients and links.
    """

    form: Literal["diging", "atc", "aug_dgm"] = "diging"
    kernel: ClassVar[str] = TRACKING

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, Tensor]:
        """PY of the iteration before (aug_dgm: Y), and H."""
        return theta.new_zeros(theta.shape), theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration; one gradient for each client that computes."""
        before, held = state
        new = at.gradient(theta, at.v).where(at.v > 0, held)
        y = before + (new - held)  # the brackets make an iteration without events exact
        if self.form == "aug_dgm":
            y = at.mix(y)
        move = at.lr * at.v * y
        theta = at.mix(theta, minus=move) if self.form == "diging" else at.mix(theta - move)
        return theta, (y if self.form == "aug_dgm" else at.mix(y), new)

    def sent(self, p: int) -> int:
        """The model and the tracker."""
        return 2 * FLOAT_BYTES * p
