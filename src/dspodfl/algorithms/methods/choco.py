"""CHOCO-SGD: clients send compressed differences to what they have sent before, and mix what they have sent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dspodfl.algorithms.compressors import COMPRESSORS, Compressor, contraction
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.step import PerLink
from dspodfl.errors import InputError
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Sender, Step


def _in_unit_interval(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


ENTRY = Entry(
    label="CHOCO",
    line="sends compressed differences; both ends of a link remember what was sent over it",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:Choco",
    settings={
        "compressor": Setting(
            line="what is sent in place of a difference",
            allowed=f"one of {', '.join(COMPRESSORS)}",
            check=lambda value: isinstance(value, str) and value in COMPRESSORS,
        ),
        "share": Setting(
            line="the share of numbers that top_k and random_k keep",
            allowed="a number in (0, 1]",
            check=_in_unit_interval,
            default=0.1,
        ),
        "levels": Setting(
            line="the levels that qsgd rounds to",
            allowed="an integer of at least 1",
            check=lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            default=16,
        ),
        "gamma": Setting(
            line="how far a client goes towards what its neighbours have sent: by default δ of the compressor, the "
            "kept share of top_k and random_k, 1/(1 + ω) of qsgd, 1 of identity, and only 1/p of sign",
            allowed="a number in (0, 1]",
            check=_in_unit_interval,
            default="δ",
        ),
    },
    reference="Koloskova, Stich and Jaggi, ICML 2019; replicas at the ends of links instead of one a client",
    aliases=("choco_sgd", "chocosgd", "choco_gossip"),
    order=500,
    sends="a compressed model",
    update="Θ̂ = Θ − αVG\ns_ij ← s_ij + Q(θ̂_i − s_ij) where link (i, j) fires: what i has told j, known to both\n"
    "θ_i ← θ̂_i + γ Σ_j r_ij v̂_ij (s_ji − s_ij)",
    when="Bytes are scarce: a use of a link costs a fifth of a model by default, and less with a smaller share. "
    "Consensus takes more iterations, and too large a γ diverges. With sign, give γ: its default is safe for any "
    "vector, and far too small for most.",
)


@dataclass(frozen=True)
class Choco:
    """Θ̂ = Θ − αVG;  each end adds Q(θ̂_i − s_ij) to what it has told the other, and goes towards what it was told.

    The papers have one replica of each client, the same at all of its neighbours, which is right only if every message
    reaches every neighbour. Here both ends of a link remember what went over it: right whatever fires, and the mean of
    the models is kept. Where all links always fire it is the same method.
    """

    compressor: str = "top_k"
    share: float | None = None
    levels: int | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        """Refuse a setting that the compressor does not take, and a γ that is not in (0, 1]."""
        if self.compressor not in COMPRESSORS:
            raise InputError("algorithms.settings.compressor", self.compressor, f"one of {', '.join(COMPRESSORS)}")
        takes = [field.name for field in fields(COMPRESSORS[self.compressor])]
        for key in ("share", "levels"):
            if getattr(self, key) is not None and key not in takes:
                allowed = f"left out: {self.compressor} does not take it"
                raise InputError(f"algorithms.settings.{key}", getattr(self, key), allowed)
        for key in ("share", "gamma"):
            if getattr(self, key) is not None and not _in_unit_interval(getattr(self, key)):
                raise InputError(f"algorithms.settings.{key}", getattr(self, key), "a number in (0, 1]")

    @cached_property
    def q(self) -> Compressor:
        """The compressor."""
        given = {"share": self.share, "levels": self.levels}
        made: Compressor = COMPRESSORS[self.compressor](**{key: a for key, a in given.items() if a is not None})
        return made

    def init(self, theta: Tensor, links: int) -> PerLink | None:
        """What an end has told the other, and what it was told, in the order of ``named_parameters``: 0.

        What is sent as it is needs no memory.
        """
        return None if self.q.lossless else PerLink((theta.new_zeros(2 * links, theta.shape[1]),) * 2)

    def step(self, theta: Tensor, told: PerLink | None, at: Step) -> tuple[Tensor, PerLink | None]:
        """One iteration."""
        p = at.layout.parameters
        gamma = self.q.delta(p) if self.gamma is None else self.gamma
        half = theta - at.gradient(theta, at.lr * at.v)
        if self.q.lossless:  # both ends know the models
            mixed = at.mix(half)
            return mixed if gamma == 1 else half + gamma * (mixed - half), told
        slots = self.q.slots(p)
        words = at.words(Stream.COMPRESS, slots) if slots else at.v[:, :0]
        x = at.layout.flat(half), words
        change, told = at.exchange(x, _Difference(self.q), _Replicas(gamma), told)
        return half + at.layout.packed(change), told

    def sent(self, p: int) -> int:
        """What the compressor makes of a model."""
        return self.q.sent(p)


@dataclass(frozen=True)
class _Difference:
    """Sends what the compressor makes of the own model less what was told: a `dspodfl.algorithms.step.Send`.

    Between processes it is encoded, and has as many bytes as the compressor says.
    """

    q: Compressor

    def __call__(self, x: Any, told: Any) -> Tensor:
        model, words = x
        return contraction(self.q, model - told[0][:, : model.shape[1]], words)

    def encode(self, message: Tensor, x: Any, told: Any) -> tuple[Tensor, ...]:
        model, words = x
        return self.q.encode(message, model - told[0][:, : model.shape[1]], words)

    def decode(self, parts: tuple[Tensor, ...], sender: Sender) -> Tensor:
        p = sender.parameters
        return self.q.decode(parts, p, lambda: sender.words(Stream.COMPRESS, self.q.slots(p)))


@dataclass(frozen=True)
class _Replicas:
    """What an end receives: it goes towards what it was told."""

    gamma: float

    def __call__(self, x: Any, mine: Tensor, theirs: Tensor, told: Any, arc: Arc) -> tuple[Tensor, Any]:
        p = mine.shape[1]
        own, other = told[0][:, :p] + mine, told[1][:, :p] + theirs
        return self.gamma * arc.into * (other - own), (as_wide(own, told[0]), as_wide(other, told[1]))


def as_wide(x: Tensor, like: Tensor) -> Tensor:
    """Return rows with zeros behind them. Shapes: (rows, p), (rows, width) -> (rows, width)."""
    missing = like.shape[1] - x.shape[1]
    if not missing:
        return x
    import torch

    return torch.cat([x, x.new_zeros(len(x), missing)], dim=1)
