"""What a client does with its gradient before it steps along it: clipping, a proximal term, momentum, Adam, decay.

Transformations are values that chain: ``chain(clip(1.0), momentum(0.9))``. Each client has a state of its own, which
changes only where the client computes (v = 1). They need no messages.

They move where the models of clients with different data end. Momentum ends where plain steps of α/(1 − β) do: compare
methods at equal α/(1 − β). Adam's second moments differ between clients, and clipping cuts some clients' gradients more
than others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dspodfl.errors import LARGEST, SMALLEST, InputError

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "algorithms.local"
ALLOWED = "a Local, with init(theta) and update(g, state, theta, v)"
"""What a transformation must be."""
POSITIVE = "a number greater than 0"
"""What a limit and ε must be."""
NON_NEGATIVE = "a number of at least 0"
"""What a strength must be."""
DECAYING = "a number of at least 0 and less than 1"
"""What a β must be."""


class Local(Protocol):
    """Gradients in, directions out. A client steps by −α times its direction.

    A transformation may also have ``exchanged(state, theta, linked) -> state``: it is called with the models after an
    exchange, (clients, p), and with the clients that have taken part in it, (clients, 1), bool.
    """

    def init(self, theta: Tensor) -> Any:
        """Return the state before the first step.

        Args:
            theta: The initial models, (clients, p).

        Returns:
            None, or tensors whose first axis is that of the clients, in tuples, lists or dictionaries.
        """
        ...

    def update(self, g: Tensor, state: Any, theta: Tensor, v: Tensor) -> tuple[Tensor, Any]:
        """Turn gradients into directions.

        Args:
            g: The gradients, or what the transformation before this one gives, (clients, p).
            state: The state.
            theta: Where the gradients are taken, (clients, p).
            v: Which clients compute, as 0 and 1, (clients, 1).

        Returns:
            The directions, (clients, p), of which those of clients with v = 0 are not used; and the new state, in which
            the rows of these clients are as they were.
        """
        ...


@dataclass(frozen=True)
class Clip:
    """g·min(1, c/‖g‖), for each client by itself."""

    norm: float

    def __post_init__(self) -> None:
        _check("clip", self.norm, _positive, POSITIVE)

    def init(self, theta: Tensor) -> None:
        """No state."""

    def update(self, g: Tensor, state: None, theta: Tensor, v: Tensor) -> tuple[Tensor, None]:
        """Clip."""
        return g * (self.norm / g.norm(dim=1, keepdim=True)).clamp(max=1.0), state


@dataclass(frozen=True)
class Proximal:
    """g + λ(θ − a), where a is the client's model after its last exchange, at first its initial model (FedProx)."""

    strength: float

    def __post_init__(self) -> None:
        _check("proximal", self.strength, _non_negative, NON_NEGATIVE)

    def init(self, theta: Tensor) -> Tensor:
        """A = Θ."""
        return theta.clone()

    def update(self, g: Tensor, state: Tensor, theta: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the pull to a."""
        return g + self.strength * (theta - state), state

    def exchanged(self, state: Tensor, theta: Tensor, linked: Tensor) -> Tensor:
        """Take the models of the clients that have exchanged."""
        return theta.where(linked, state)


@dataclass(frozen=True)
class Momentum:
    """m ← βm + g; the direction is m, or g + βm with the new m (Nesterov)."""

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check("nesterov" if self.nesterov else "momentum", self.beta, _decaying, DECAYING)

    def init(self, theta: Tensor) -> Tensor:
        """M = 0."""
        return theta.new_zeros(theta.shape)

    def update(self, g: Tensor, state: Tensor, theta: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Accumulate where clients compute."""
        m = (self.beta * state + g).where(v > 0, state)
        return g + self.beta * m if self.nesterov else m, m


@dataclass(frozen=True)
class Adam:
    """m/(√s + ε), with means m of g and s of g² whose bias is corrected by the number of the client's own steps."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            _check(f"adam.{name}", getattr(self, name), _decaying, DECAYING)
        _check("adam.epsilon", self.epsilon, _positive, POSITIVE)

    def init(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both means, and the number of steps in float64, in which 1 − β2ᵗ is accurate for every t."""
        count = theta.new_zeros((len(theta), 1)).double()
        return theta.new_zeros(theta.shape), theta.new_zeros(theta.shape), count

    def update(
        self, g: Tensor, state: tuple[Tensor, Tensor, Tensor], theta: Tensor, v: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Update both means where clients compute."""
        steps = v > 0
        m = (self.beta1 * state[0] + (1 - self.beta1) * g).where(steps, state[0])
        s = (self.beta2 * state[1] + (1 - self.beta2) * g * g).where(steps, state[1])
        count = state[2] + steps
        t = count.clamp(min=1.0)  # of a client that has not yet computed, whose direction is not used
        first, second = ((1 - beta**t).to(g.dtype) for beta in (self.beta1, self.beta2))
        return m / first / ((s / second).sqrt() + self.epsilon), (m, s, count)


@dataclass(frozen=True)
class Decay:
    """+ λθ: weights shrink by αλθ a step, whatever momentum or Adam make of the gradient (AdamW)."""

    strength: float

    def __post_init__(self) -> None:
        _check("decay", self.strength, _non_negative, NON_NEGATIVE)

    def init(self, theta: Tensor) -> None:
        """No state."""

    def update(self, g: Tensor, state: None, theta: Tensor, v: Tensor) -> tuple[Tensor, None]:
        """Add λθ."""
        return g + self.strength * theta, state


@dataclass(frozen=True)
class Chain:
    """One transformation after the other."""

    parts: tuple[Local, ...]

    def init(self, theta: Tensor) -> tuple[Any, ...]:
        """The states of all."""
        return tuple(part.init(theta) for part in self.parts)

    def update(self, g: Tensor, state: tuple[Any, ...], theta: Tensor, v: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Transform by each in turn."""
        new = []
        for part, before in zip(self.parts, state, strict=True):
            g, after = part.update(g, before, theta, v)
            new.append(after)
        return g, tuple(new)

    @property
    def exchanged(self) -> Callable[..., tuple[Any, ...]] | None:
        """The `exchanged` of those that have it; None where none has."""
        return self._exchanged if any(map(follows_exchanges, self.parts)) else None

    def _exchanged(self, state: tuple[Any, ...], theta: Tensor, linked: Tensor) -> tuple[Any, ...]:
        return tuple(
            part.exchanged(before, theta, linked) if follows_exchanges(part) else before  # type: ignore[attr-defined]
            for part, before in zip(self.parts, state, strict=True)
        )


def follows_exchanges(local: Local) -> bool:
    """Return whether a transformation receives the models after exchanges.

    Args:
        local: The transformation.

    Returns:
        Whether it has ``exchanged``.
    """
    return getattr(local, "exchanged", None) is not None


def chain(*parts: Local) -> Chain:
    """Chain transformations.

    Args:
        *parts: The transformations, in the order in which they apply.

    Returns:
        One transformation.

    Raises:
        InputError: One of them has no ``init`` or no ``update``.

    >>> chain(clip(1.0), momentum(0.9))
    Chain(parts=(Clip(norm=1.0), Momentum(beta=0.9, nesterov=False)))
    """
    for part in parts:
        if not is_local(part):
            raise InputError(
                FIELD, f"a {type(part).__name__}", "a Local, with init(theta) and update(g, state, theta, v)"
            )
    return Chain(parts)


def is_local(value: object) -> bool:
    """Return whether a value is a transformation.

    Args:
        value: Any value.

    Returns:
        Whether it is an object with ``init`` and ``update``.

    >>> is_local(clip(1.0)), is_local(1.0)
    (True, False)
    """
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("init", "update"))


def clip(norm: float) -> Clip:
    """Clip the gradient of each client to a norm.

    Args:
        norm: The largest norm, c.

    Returns:
        The transformation g·min(1, c/‖g‖).

    Raises:
        InputError: It is not greater than 0.
    """
    return Clip(norm)


def proximal(strength: float) -> Proximal:
    """Pull each client to its model after its last exchange.

    Args:
        strength: λ.

    Returns:
        The transformation g + λ(θ − a).

    Raises:
        InputError: It is below 0.
    """
    return Proximal(strength)


def momentum(beta: float = 0.9) -> Momentum:
    """Step along a sum of past gradients.

    Args:
        beta: What is kept of the sum in a step of the client.

    Returns:
        The transformation m ← βm + g.

    Raises:
        InputError: It is not in [0, 1).
    """
    return Momentum(beta)


def nesterov(beta: float = 0.9) -> Momentum:
    """Step along the gradient and a sum of past gradients, as Nesterov does.

    Args:
        beta: What is kept of the sum in a step of the client.

    Returns:
        The transformation m ← βm + g, of which g + βm is the direction.

    Raises:
        InputError: It is not in [0, 1).
    """
    return Momentum(beta, nesterov=True)


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Adam:
    """Divide a mean of gradients by the root of a mean of their squares; with `decay` after it, this is AdamW.

    Args:
        beta1: What is kept of the mean of gradients in a step of the client.
        beta2: What is kept of the mean of squares.
        epsilon: Added to the root.

    Returns:
        The transformation.

    Raises:
        InputError: A β is not in [0, 1), or ε is not greater than 0.
    """
    return Adam(beta1, beta2, epsilon)


def decay(strength: float) -> Decay:
    """Shrink the weights by αλθ in every step of the client.

    Args:
        strength: λ.

    Returns:
        The transformation g + λθ.

    Raises:
        InputError: It is below 0.
    """
    return Decay(strength)


def _check(key: str, value: Any, check: Callable[[float], bool], allowed: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (number and check(value)):
        raise InputError(f"{FIELD}.{key}", value, allowed)


def _positive(value: float) -> bool:
    return SMALLEST <= value <= LARGEST


def _non_negative(value: float) -> bool:
    return 0 <= value <= LARGEST


def _decaying(value: float) -> bool:
    return 0 <= value < 1
