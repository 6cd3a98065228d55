"""Anarchic federated learning: a server, and clients that compute and talk to it whenever they can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dspodfl.algorithms.checks import is_count
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.step import PerLink
from dspodfl.algorithms.with_server import EVALUATED, is_positive, is_server, told

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

FORMS = ("cd", "cs")

ENTRY = Entry(
    label="Anarchic FL",
    line="with a server: clients step and talk to it whenever they can; it steps along their mean gradients",
    schedule="dspodfl.algorithms.star:anarchy",
    rule=f"{__name__}:Anarchic",
    settings={
        "form": Setting(
            line="the mean is over those who upload (cd: cross-device) or the last of all clients (cs: cross-silo)",
            allowed=f"one of {', '.join(FORMS)}",
            check=lambda value: value in FORMS,
        ),
        "steps": Setting(
            line="the most local steps between two uploads; if absent, as many as the client takes",
            allowed="an integer of at least 1",
            check=is_count(1),
            default="no limit",
        ),
        "server_rate": Setting(
            line="η/α, the step of the server as a multiple of the learning rate",
            allowed="a number above 0",
            check=is_positive,
        ),
    },
    reference="Yang, Zhang, Khanduri and Liu, Anarchic Federated Learning, ICML 2022",
    aliases=("afa", "anarchic federated learning"),
    order=61,
    server=True,
    takes_local=False,
    update="θ_i ← x where its link fires, then θ_i ← θ_i − αg_i, K_i times\n"
    "ḡ_i = (x_i − θ_i)/(αK_i), x_i: where it began\n"
    "cd: x ← x − η mean of ḡ_i over those who upload\ncs: x ← x − η(1/n) Σ_i ḡ_i, the last of each",
    when="Clients come and go as they like. cd goes towards clients that upload often; cs does not: it is exact with "
    f"steps = 1, else off by about αK. {EVALUATED}",
)


@dataclass(frozen=True)
class Anarchic:
    """A client whose link fires uploads its mean local gradient ḡ_i, if it has stepped, and receives the new x.

    αK_i is the sum of the steps that it took. cs: the server holds the last ḡ_i of each link, 0 before the first.
    """

    form: Literal["cd", "cs"] = "cs"
    steps: int | None = None
    server_rate: float = 1.0

    def init(self, theta: Tensor, links: int) -> tuple[Any, ...]:
        """Where each client began, how many steps it took and their sum since, and the memory of the server."""
        count = theta.new_zeros((len(theta), 1))
        held = PerLink((theta.new_zeros((2 * links, theta.shape[1])),)) if self.form == "cs" else None
        return theta.clone(), count, count.clone(), held

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration: up, down, then steps."""
        start, count, taken, held = state
        server = is_server(at)
        theta, held = self._uploaded(theta, (start - theta) / taken.where(taken > 0, 1.0), taken > 0, server, held, at)
        heard, (received,) = told(at, server, theta)
        new = heard > 0
        theta, start = received.where(new, theta), received.where(new, start)
        count, taken = count * ~new, taken * ~new
        scale = at.lr * at.v * ~server
        scale = scale if self.steps is None else scale * (count < self.steps)
        return theta - at.gradient(theta, scale), (start, count + (scale > 0), taken + scale, held)

    def _uploaded(
        self, theta: Tensor, gradient: Tensor, ready: Tensor, server: Tensor, held: PerLink | None, at: Step
    ) -> tuple[Tensor, PerLink | None]:
        """Send gradients up, and let the server step."""
        if held is None:
            count, (total,) = told(at, ready, gradient)
            mean = total / count.clamp(min=1)
        else:
            count, _ = at.exchange((ready.to(theta.dtype), gradient), _everything, _remember, held)  # changed in place
            mean = at.total(held)[0] / (at.n - 1)
        return (theta - self.server_rate * at.lr * mean).where(server & (count > 0), theta), held


def _everything(x: Any, _: Any) -> Any:
    return x


def _remember(x: Any, mine: Any, theirs: Any, memory: Any, arc: Any) -> Any:
    """Count those who upload, and keep what they send."""
    ready, gradient = theirs
    return ready, (gradient.where(ready > 0, memory[0]),)
