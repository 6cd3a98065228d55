"""A rule whose clients step along transformed gradients (`dspodfl.algorithms.local`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.base import Rule, rests_without_events
from dspodfl.algorithms.local import FIELD, Local, follows_exchanges
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Layout, PerLink, Receive, Send, Step
    from dspodfl.rng import Stream

GRADIENTS_ONCE = "left out: the rule does not ask for gradients once in an iteration, by at.gradient(x, at.lr * at.v)"
"""What a message says after "must be" where the rule of an algorithm cannot be given transformed gradients."""


@dataclass(frozen=True)
class WithLocal:
    """A rule in which αVG is αV times the direction that a transformation makes of G.

    The rule asks for its gradients once in an iteration, scaled by αv. What it declares, sends and evaluates stays.
    """

    rule: Rule
    local: Local

    def init(self, theta: Tensor, links: int) -> tuple[Any, Any]:
        """The states of the rule and of the transformation."""
        return self.rule.init(theta, links), self.local.init(theta)

    def step(self, theta: Tensor, state: tuple[Any, Any], at: Step) -> tuple[Tensor, tuple[Any, Any]]:
        """One iteration."""
        seen = Transformed(at, self.local, state[1], theta)
        new, inner = self.rule.step(theta, state[0], seen)
        return new, (inner, seen.end(new))

    def __getattr__(self, name: str) -> Any:
        """Return what the rule has besides: ``mixes``, ``sent``, ``model``, ``check`` and so on."""
        if name in ("rule", "local") or name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.rule, name)
        return (lambda theta, state: found(theta, state[0])) if name == "model" else found


@dataclass(frozen=True)
class RestsWithLocal(WithLocal):
    """The same of a rule in which a client without an event keeps its model and its state."""

    rests: ClassVar[bool] = True


def with_local(rule: Rule, local: Local) -> WithLocal:
    """Return a rule with another one's update along transformed gradients.

    Args:
        rule: The rule; it calls ``at.gradient(x, at.lr * at.v)`` once in every iteration.
        local: The transformation.

    Returns:
        The rule.

    >>> from dspodfl.algorithms import Simultaneous, local
    >>> with_local(Simultaneous(), local.clip(1.0)).mixes
    1
    """
    return (RestsWithLocal if rests_without_events(rule) else WithLocal)(rule, local)


class Transformed:
    """An iteration whose gradients are transformed: a `dspodfl.algorithms.Step`.

    Args:
        at: The iteration.
        local: The transformation.
        state: Its state before the iteration.
        theta: The models before the iteration, (clients, p).
    """

    def __init__(self, at: Step, local: Local, state: Any, theta: Tensor) -> None:
        self._at, self._local, self._state, self._theta = at, local, state, theta
        self._asked, self._exchanged = False, False
        self._gated: Step | None = None
        self.k, self.v, self.lr = at.k, at.v, at.lr

    @property
    def linked(self) -> Tensor:
        """Which clients have a link that fires, (clients, 1), bool."""
        return self._at.linked

    @property
    def layout(self) -> Layout:
        """Where the parameters are in the rows of the models."""
        return self._at.layout

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute diag(scale) times the directions at x. Shapes: x (clients, p), scale (clients, 1) -> (clients, p).

        Raises:
            InputError: The rule asks a second time, or for gradients that are not scaled.
        """
        if self._asked or scale is None:
            raise InputError(FIELD, type(self._local).__name__, GRADIENTS_ONCE)
        self._asked = True
        if x is not self._theta:  # where the rule exchanges first, x are the models after it
            self._after_exchange(x)
        direction, self._state = self._local.update(self._at.gradient(x, self.v), self._state, x, self.v)
        return scale * direction

    def end(self, theta: Tensor) -> Any:
        """Return the state after the iteration; ``theta`` are the models after it, (clients, p).

        Raises:
            InputError: The rule has not asked for gradients.
        """
        if not self._asked:
            raise InputError(FIELD, type(self._local).__name__, GRADIENTS_ONCE)
        self._after_exchange(theta)
        return self._state

    def _after_exchange(self, theta: Tensor) -> None:
        """Give the transformation the models after an exchange, if there was one that it has not yet seen."""
        if self._exchanged and follows_exchanges(self._local):
            self._state = self._local.exchanged(self._state, theta, self._linked())  # type: ignore[attr-defined]
        self._exchanged = False

    def _linked(self) -> Tensor:
        """Which clients have a link that fires, through a gate where there is one, (clients, 1), bool."""
        return self._at.linked if self._gated is None else self._gated.linked

    def gate(self, who: Tensor) -> Step:
        """Return the iteration with fewer links; what is exchanged there is an exchange of this one."""
        self._gated, self._exchanged = self._at.gate(who), True
        return self._gated

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Compute P(k)x − minus."""
        self._exchanged = True
        return self._at.mix(x) if minus is None else self._at.mix(x, minus)

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Exchange messages over the links that fire."""
        self._exchanged = True
        return self._at.exchange(x, send, receive, memory)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the neighbours whose links fire."""
        self._exchanged = True
        return self._at.around(x)

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw random words at the address of each client and this iteration."""
        return self._at.words(stream, slots)

    def __getattr__(self, name: str) -> Any:
        """Return what else the iteration has."""
        return getattr(self._at, name)
