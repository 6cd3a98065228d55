"""A rule is tried on a few small models before a run begins with it: what it carries must fit a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, fused_kernel
from dspodfl.engine import leaves
from dspodfl.errors import InputError, user_code

_FIELD = "algorithms.rule"
_CLIENTS = 3
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
    if fused_kernel(rule) is not None:  # a kernel computes it, without a state
        return
    value = f"{type(rule).__name__} of {label!r}"
    theta = torch.zeros(_CLIENTS, max(1, min(parameters, _MAX_ELEMENTS // _CLIENTS)))
    with user_code.guarded(_FIELD, value, "a Rule, but init(theta)"):
        state = rule.init(theta.clone())
    form = _form(value, "init", state)
    one = torch.ones(_CLIENTS)
    with user_code.guarded(_FIELD, value, "a Rule, but step(theta, mix, gradient, v, lr, state)"):
        found = rule.step(theta.clone(), _mix, _gradient, one, 0.1 * one, state)
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(_FIELD, value, f"a Rule whose step gives (theta, state); it gave a {type(found).__name__}")
    new, state = found
    if not isinstance(new, Tensor) or new.shape != theta.shape or new.dtype != theta.dtype:
        gave = f"{tuple(new.shape)}, {new.dtype}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
        allowed = f"a Rule whose step gives models of the shape and type that they had, (clients, p); it gave {gave}"
        raise InputError(_FIELD, value, allowed)
    if _form(value, "step", state) != form:
        raise InputError(_FIELD, value, "a Rule whose state keeps its form: step gives other tensors than init")


def _form(value: str, method: str, state: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and types of the tensors of a state."""
    try:
        return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves(state, _CLIENTS)]
    except InputError as error:
        wanted = "None, or tensors of one row a client, in tuples, lists or dictionaries"
        allowed = f"a Rule whose {method} gives as its state {wanted}; it gave {error.value}"
        raise InputError(_FIELD, value, allowed) from None


def _mix(x: Tensor, minus: Tensor | None = None) -> Tensor:
    return x.clone() if minus is None else x - minus


def _gradient(x: Tensor, scale: Tensor | None = None) -> Tensor:
    return torch.zeros_like(x) if scale is None else torch.zeros_like(x) * scale[:, None]
