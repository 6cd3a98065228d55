"""Attackers: clients that send other things than their models, knowing everything.

An attack makes what attackers send in place of their rows of an array: one message for each attacker, or one for each
receiver, the same from all attackers. `UnderAttack` is an iteration in which honest clients receive these messages.
Attackers themselves receive what was really sent, and train as usual.

To add an attack, add a class here under ``@ATTACKS.register()``: its first docstring line is what users read, and its
fields are its parameters, each annotated with its range and a `Doc`. Configuration, template and docs follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from dspodfl.errors import Doc, InputError, Positive, Real, Registry
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, PerLink, Receive, Send, Step


class Kind(Protocol):
    """What attackers do.

    An attack on data alone has ``alters_data = True``: what is sent is then as it would be.
    """

    @property
    def alters_data(self) -> bool:
        """Whether attackers change their labels instead of what they send."""
        ...

    @property
    def by_receiver(self) -> bool:
        """Whether a message depends on the receiver, and not on the attacker."""
        ...

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """Return what attackers send instead of their rows of an array.

        Args:
            x: What clients send, (clients, p).
            attacker: Which of them are attackers, as 0 and 1, (clients, 1).
            at: The iteration without the attack.

        Returns:
            The messages, (clients, p): in the row of each attacker, or, ``by_receiver``, in that of each receiver.
        """
        ...


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how."""

    clients: tuple[int, ...]
    """The attackers, by their numbers in a run."""
    kind: Kind

    @property
    def alters_messages(self) -> bool:
        """Whether attackers send other things than their models."""
        return not self.kind.alters_data


ATTACKS: Registry[Kind] = Registry("attack.kind", context=("count", "attackers"))
"""The attacks that a configuration can name. Context: ``count``, the clients of a run; ``attackers``, how many of them
attack."""


@dataclass(frozen=True)
class _OnMessages:
    """What attacks on messages have in common."""

    alters_data: ClassVar[bool] = False
    by_receiver: ClassVar[bool] = True


@dataclass(frozen=True)
class Alie(_OnMessages):
    """The mean of the honest models around the receiver, moved by z of their standard deviations, in each coordinate.

    The honest models around a receiver are its own and those of honest neighbours whose links fire.
    """

    z: float

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """Mean − z · std."""
        mean, count = _honest_mean(x, attacker, at)
        squares, _ = at.exchange((x, attacker, mean), _first_two, _squares)
        return mean - self.z * ((squares + (x - mean).square()) / count).sqrt()


@ATTACKS.register("alie")
def alie(
    count: int,
    attackers: int,
    z: Annotated[
        Real | None,
        Doc(
            "how many standard deviations; absent: Φ⁻¹((n − f − s)/(n − f)) with s = ⌊n/2 + 1⌋ − f, for f attackers "
            "among n clients",
            example=1.0,
        ),
    ] = None,
) -> Alie:
    """A little is enough: mean − z · std of the honest models around the receiver (Baruch et al., 2019).

    Args:
        count: The number of clients, n.
        attackers: The number of attackers, f.
        z: The standard deviations; None: by n and f.

    Returns:
        The attack.

    Raises:
        InputError: No z follows from n and f.

    >>> alie(50, 12).z > alie(50, 5).z
    True
    """
    if z is None:
        honest, needed = count - attackers, count // 2 + 1 - attackers
        share = (honest - needed) / honest
        if not 0 < share < 1:
            raise InputError("attack.z", None, f"given: none follows from {attackers} attackers among {count} clients")
        z = NormalDist().inv_cdf(share)
    return Alie(z)


@ATTACKS.register("sign_flip")
@dataclass(frozen=True)
class SignFlip(_OnMessages):
    """The own model with the opposite sign."""

    by_receiver: ClassVar[bool] = False

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """−θ_j."""
        return -x


@ATTACKS.register("noise")
@dataclass(frozen=True)
class Noise(_OnMessages):
    """Normal numbers, drawn for each attacker and iteration, instead of a model."""

    by_receiver: ClassVar[bool] = False

    std: Annotated[Positive, Doc("their standard deviation")] = 1.0

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """N(0, std²): parameter n of client j of words 2n and 2n + 1 at (ATTACK, j, k)."""
        from torch import special

        words = at.words(Stream.ATTACK, 2 * at.layout.parameters)
        high, low = (words[:, 0::2] >> 5).double(), (words[:, 1::2] >> 6).double()
        uniform = (high * 67108864.0 + low) / 9007199254740992.0
        normal = special.ndtri((uniform + 2.0**-54).clamp(max=1.0 - 2.0**-53))
        return at.layout.packed((self.std * normal).to(x.dtype))


@ATTACKS.register("ipm")
@dataclass(frozen=True)
class Ipm(_OnMessages):
    """Inner product manipulation: −ε times the mean of the honest models around the receiver (Xie et al., 2019)."""

    epsilon: Annotated[Positive, Doc("ε, the factor")] = 0.1

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """−ε · mean."""
        return -self.epsilon * _honest_mean(x, attacker, at)[0]


@ATTACKS.register("label_flip")
@dataclass(frozen=True)
class LabelFlip:
    """Labels y of attackers become C − 1 − y; what they send is what they have trained on that."""

    alters_data: ClassVar[bool] = True
    by_receiver: ClassVar[bool] = False

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """The models as they are."""
        return x


@ATTACKS.register("dissensus")
@dataclass(frozen=True)
class Dissensus(_OnMessages):
    """θ_i − ε Σ r_ij(θ_j − θ_i)/Σ_B r_ij to each receiver i, the sum over its honest neighbours (He et al., 2022).

    With ε = 1 attackers take back what the honest neighbours add; with more, they drive honest clients apart.
    """

    epsilon: Annotated[Positive, Doc("ε, how much of what honest neighbours add is taken back")] = 1.5

    def messages(self, x: Tensor, attacker: Tensor, at: Step) -> Tensor:
        """θ_i − ε Σ_honest r_ij(θ_j − θ_i)/Σ_B r_ij."""
        (pull, weight), _ = at.exchange((x, attacker), _all, _pulls)
        return x - self.epsilon * pull / weight.where(weight > 0, 1.0)


def _all(x: Any, memory: Any) -> Any:
    return x


def _first_two(x: Any, memory: Any) -> Any:
    return x[:2]


def _sums(x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
    """What honest neighbours send, and how many they are."""
    row, attacker = theirs
    return (row.where(attacker == 0, 0.0), 1.0 - attacker), None


def _squares(x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
    """Squared distances of what honest neighbours send from the own mean."""
    row, attacker = theirs
    return (row - x[2]).square().where(attacker == 0, 0.0), None


def _pulls(x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
    """What honest neighbours add to the own model, and the weight of attackers."""
    row, attacker = theirs
    return ((arc.into * (row - x[0])).where(attacker == 0, 0.0), arc.into * attacker), None


def _honest_mean(x: Tensor, attacker: Tensor, at: Step) -> tuple[Tensor, Tensor]:
    """The mean of the honest rows around each client, its own among them, and how many they are."""
    (total, count), _ = at.exchange((x, attacker), _all, _sums)
    return (x + total) / (count + 1.0), count + 1.0


@dataclass(frozen=True)
class _Messages:
    """One end of an exchange in which attackers send their messages to honest clients."""

    by_receiver: bool
    send: Send

    def sends(self, own: Any, memory: Any) -> Any:
        """What is really sent, the message of an attacker, and whether this is one."""
        x, messages, attacker = own
        return self.send(x, memory), attacker if self.by_receiver else messages, attacker

    def changes(self, own: Any, mine: Any, theirs: Any, memory: Any, arc: Arc) -> tuple[Any, None]:
        """What the message of an attacker adds, compared with what it would be."""
        message = own[1] if self.by_receiver else theirs[1]
        return (arc.into * (message - theirs[0])).where(theirs[2] > own[2], 0.0), None


@dataclass(frozen=True)
class _Delivered(_Messages):
    """The same where a rule says what an end receives."""

    receive: Receive

    def receives(self, own: Any, mine: Any, theirs: Any, memory: Any, arc: Arc) -> tuple[Any, Any]:
        """Receive the message of an attacker where one sends to an honest client."""
        x, messages, attacker = own
        message = messages if self.by_receiver else theirs[1]
        return self.receive(x, mine[0], message.where(theirs[2] > attacker, theirs[0]), memory, arc)


class UnderAttack:
    """An iteration in which attackers send what an attack says: a `dspodfl.algorithms.Step`.

    It is for rules that declare ``sends_models``.

    Args:
        at: The iteration without the attack.
        kind: What attackers do.
        attacker: Which clients are attackers, as 0 and 1, (clients, 1), of the type of the models.
    """

    def __init__(self, at: Step, kind: Kind, attacker: Tensor) -> None:
        self._at, self._kind, self._attacker = at, kind, attacker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._at, name)

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Compute P(k)x − minus with the messages of attackers; see `dspodfl.algorithms.Step.mix`.

        Args:
            x: What clients send, (clients, p).
            minus: Subtracted, (clients, p); its memory is used up.

        Returns:
            The mixed rows, (clients, p).
        """
        mixed = self._at.mix(x, minus)  # before the others: rows of other processes may be on their way for it
        ends = _Messages(self._kind.by_receiver, _all)
        own = x, self._kind.messages(x, self._attacker, self._at), self._attacker
        change, _ = self._at.exchange(own, ends.sends, ends.changes)
        return mixed + change

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Exchange models with the messages of attackers; see `dspodfl.algorithms.Step.exchange`.

        Args:
            x: The array that is sent, (clients, p), or a tuple whose first tensor it is.
            send: Gives the own row of that array.
            receive: Gives what an end adds to its client, and its new memory.
            memory: The memory at the ends of links.

        Returns:
            What is added to each client, and the memory.
        """
        sent = x[0] if isinstance(x, tuple) else x
        ends = _Delivered(self._kind.by_receiver, send, receive)
        own = x, self._kind.messages(sent, self._attacker, self._at), self._attacker
        return self._at.exchange(own, ends.sends, ends.receives, memory)

    def gate(self, who: Tensor) -> UnderAttack:
        """Return the iteration with fewer links, under the same attack; see `dspodfl.algorithms.Step.gate`.

        Args:
            who: Clients of which one is enough at a link, (clients, 1), bool.

        Returns:
            The iteration in which other links do not fire.
        """
        return UnderAttack(self._at.gate(who), self._kind, self._attacker)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the neighbours whose links fire, with the messages of attackers.

        Args:
            x: What clients send, (clients, p).

        Returns:
            The rows, (clients, most neighbours, p), and which of them there are, (clients, most neighbours), bool.
        """
        rows, there = self._at.around(x)
        messages = self._kind.messages(x, self._attacker, self._at)
        attacker, _ = self._at.around(self._attacker)
        seen = messages[:, None] if self._kind.by_receiver else self._at.around(messages)[0]
        return seen.where(attacker > self._attacker[:, None], rows), there
