"""A rule is tried on a few small models before a run begins with it: what it carries must fit a checkpoint."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import GRADIENTS_ONCE, SIMULTANEOUS, Arc, PerLink, Rule, WithLocal, bytes_sent, fused_kernel
from dspodfl.engine import leaves, link_leaves, tree
from dspodfl.errors import InputError, user_code
from dspodfl.rng import Stream

_FIELD = "algorithms.rule"
_CLIENTS = 3
_EDGES = ((0, 1), (1, 2))
_MAX_ELEMENTS = 2**24
"""Parameters that a rule is tried on, at most."""


def check_rule(label: str, rule: Rule, parameters: int) -> None:
    """Refuse a rule whose ``init`` or ``step`` fails, or whose state cannot be saved or changes its form.

    Args:
        label: of the algorithm, for messages.
        rule: how mixed models and gradients become new models.
        parameters: p, the number of parameters of the model.

    Raises:
        InputError: says what is wrong with the state or the models that the rule gives.

    >>> from dspodfl.algorithms import Simultaneous
    >>> check_rule("dspodfl", Simultaneous(), 10)
    """
    value = f"{type(rule).__name__} of {label!r}"
    with user_code.guarded(_FIELD, value, "a Rule, but sent(p)"):
        sent = bytes_sent(rule, parameters)
    if sent < 0:
        raise InputError(_FIELD, value, f"a Rule whose sent(p) gives bytes; it gave {sent} at p = {parameters}")
    if fused_kernel(rule) == SIMULTANEOUS:  # a kernel computes it, without a state
        return
    kind = type(rule.rule if isinstance(rule, WithLocal) else rule).__name__
    value = f"{kind} of {label!r}"
    theta = torch.zeros(_CLIENTS, max(1, min(parameters, _MAX_ELEMENTS // _CLIENTS)))
    with user_code.guarded(_FIELD, value, "a Rule, but init(theta, links)"):
        state = rule.init(theta.clone(), len(_EDGES))
    form = _form(value, "init", state)
    if isinstance(rule, WithLocal):
        _check_gradients(label, rule, theta, state[0])
    with user_code.guarded(_FIELD, value, "a Rule, but step(theta, state, at)"):
        found = rule.step(theta.clone(), state, _Trial(theta))
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(_FIELD, value, f"a Rule whose step gives (theta, state); it gave a {type(found).__name__}")
    new, state = found
    if not isinstance(new, Tensor) or new.shape != theta.shape or new.dtype != theta.dtype:
        gave = f"{tuple(new.shape)}, {new.dtype}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
        allowed = f"a Rule whose step gives models of the shape and type that they had, (clients, p); it gave {gave}"
        raise InputError(_FIELD, value, allowed)
    if _form(value, "step", state) != form:
        raise InputError(_FIELD, value, "a Rule whose state keeps its form: step gives other tensors than init")


def _check_gradients(label: str, rule: WithLocal, theta: Tensor, state: Any) -> None:
    """Refuse transformations of gradients for a rule that does not ask for αVG once in an iteration."""
    at = _Asked(theta)
    with user_code.guarded(_FIELD, f"{type(rule.rule).__name__} of {label!r}", "a Rule, but step(theta, state, at)"):
        rule.rule.step(theta.clone(), deepcopy(state), at)
    if len(at.asked) != 1 or at.asked[0] is None or not torch.equal(at.asked[0], at.lr * at.v):
        raise InputError("algorithms.local", f"with {type(rule.rule).__name__} of {label!r}", GRADIENTS_ONCE)


def _form(value: str, method: str, state: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and types of the tensors of a state."""
    try:
        return [(tuple(leaf.shape), leaf.dtype) for leaf in (*leaves(state, _CLIENTS), *link_leaves(state))]
    except InputError as error:
        wanted = "None, or tensors of one row a client, in tuples, lists or dictionaries"
        allowed = f"a Rule whose {method} gives as its state {wanted}; it gave {error.value}"
        raise InputError(_FIELD, value, allowed) from None


class _Trial:
    """An iteration of three clients in a path, in which everything fires, with gradients of 0."""

    def __init__(self, theta: Tensor) -> None:
        self.k, self.v, self.lr = 0, theta.new_ones((_CLIENTS, 1)), theta.new_full((_CLIENTS, 1), 0.1)
        self.linked, self.n = self.v > 0, theta.new_full((_CLIENTS, 1), float(_CLIENTS))
        self.probability = self.link_rate = self.v
        self.client = torch.zeros((_CLIENTS, 1), dtype=torch.int64)  # a list by client has at least one entry
        self.layout = _Flat(theta.shape[1], ((theta.shape[1],),))
        self._end = torch.tensor([end for edge in _EDGES for end in edge])

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Zeros."""
        return torch.zeros_like(x) if scale is None else torch.zeros_like(x) * scale

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """The array as it is."""
        return x.clone() if minus is None else x - minus

    def exchange(self, x: Any, send: Any, receive: Any, memory: PerLink | None = None) -> tuple[Any, PerLink | None]:
        """Send and receive at both ends of both links."""
        own = tree(lambda a: a[self._end], x)
        mine = memory.rows if memory is not None else None
        message = send(own, mine)
        weight = self.v.new_full((len(self._end), 1), 0.25)
        theirs = tree(lambda a: a.view(len(a) // 2, 2, *a.shape[1:]).flip(1).view(a.shape), message)
        added, new = receive(own, message, theirs, mine, Arc(weight, weight, weight, weight))
        total = tree(lambda a: a.new_zeros((_CLIENTS, *a.shape[1:])).index_add_(0, self._end, a), added)
        return total, PerLink(tuple(new)) if memory is not None else None

    def total(self, memory: PerLink) -> tuple[Tensor, ...]:
        """The sums of both links."""
        return tuple(a.new_zeros((_CLIENTS, *a.shape[1:])).index_add_(0, self._end, a) for a in memory.rows)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the neighbours."""
        there = torch.tensor([[True, False], [True, True], [True, False]])
        return x[torch.tensor([[1, 1], [0, 2], [1, 1]])] * there[:, :, None], there

    def weights_around(self) -> Tensor:
        """The weights of the neighbours."""
        return self.v.new_tensor([[0.25, 0.0], [0.25, 0.25], [0.25, 0.0]])

    def gate(self, who: Tensor) -> _Trial:
        """The same: everything fires."""
        return self

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Words of three clients."""
        return torch.as_tensor(rng.words(0, stream, torch.arange(_CLIENTS), slots=slots))


class _Asked(_Trial):
    """The same where one client does not compute; it lists how gradients are scaled."""

    def __init__(self, theta: Tensor) -> None:
        super().__init__(theta)
        self.v = theta.new_tensor([[1.0], [0.0], [1.0]])
        self.asked: list[Tensor | None] = []

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Zeros."""
        self.asked.append(scale)
        return super().gradient(x, scale)


class _Flat(NamedTuple):
    """The layout of models that are as they are."""

    parameters: int
    shapes: tuple[tuple[int, ...], ...]

    def flat(self, x: Tensor) -> Tensor:
        """The rows."""
        return x

    def packed(self, x: Tensor) -> Tensor:
        """The rows."""
        return x
