"""What a method is: when clients step and links exchange (schedule), how models change (rule), and its settings.

Schedules and rules declare, by attributes of their classes, what the engine may do with them:

| of | attribute | meaning | without it |
|---|---|---|---|
| a schedule | ``independent = True`` | events are independent, with known ``probabilities`` | it is called for events |
| a schedule | ``graph(base)`` | the graph that it runs on (`dspodfl.algorithms.own_network`) | that of the study |
| a schedule | ``weights(k, graph)`` | its own mixing weights (`dspodfl.algorithms.own_network`) | ``graph.weights`` |
| a rule | ``mixes = 1`` | ``mix`` is called once in an iteration, with an array of the models' shape | any number |
| a rule | ``needs_probability = True`` | `Arc.probability` is given; schedules that do not know it are refused | None |
| a rule | ``sends_models = True`` | clients send their models and nothing else | refused under attack |
| a rule | ``gates = True`` | models decide which links fire: it exchanges over `Step.gate` alone | the schedule does |
| a rule | ``directed = True`` | it runs on directed graphs: it exchanges, and never mixes | it is refused there |
| a rule | ``rests = True`` | a client without an event keeps its model and its state | it may move at any time |
| a rule | ``kernel = "simultaneous"`` | this fused kernel computes the same step | PyTorch computes it |

A declaration is one of the class that defines the step (of a schedule: the call). A subclass with another step has to
declare it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from dspodfl.algorithms.local import ALLOWED as ALLOWED_LOCAL
from dspodfl.algorithms.local import is_local
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from typing import TypeGuard

    import numpy as np
    from torch import Tensor

    from dspodfl.algorithms.step import Step
    from dspodfl.network import Events, Part, Rates

SIMULTANEOUS = "simultaneous"
"""The fused kernel of Θ ← PΘ − αV G(Θ), and the name of that rule."""
TRACKING = "tracking"
"""The fused kernel of gradient tracking, of a rule that has ``form``."""
CORRECTED = "corrected"
"""The fused kernel of V(G − h) where all links share one factor, of a rule that has ``s`` and ``probability``."""
CORRECTED_BY_LINK = "corrected_by_link"
"""The same where each link has its own factor, of a rule that has ``s`` and ``factor``."""
MAX_LABEL = 80
"""Characters of a label, at most."""

Probabilities = tuple["np.ndarray", "np.ndarray"]
"""Firing probabilities of the run's clients and links, shapes (iterations or 1, clients), (iterations or 1, links).

On a directed graph those of links may have 2 · links columns: all i → j of the links (i, j), i < j, then all j → i.
With as many columns as links, both directions have the same probability, and draw each by itself.

One row says that they are the same at every iteration for as long as the rates are."""


class Schedule(Protocol):
    """When clients step and links exchange.

    A schedule that draws random numbers besides those of `dspodfl.algorithms.draw` has a parameter ``draws``, which
    `make` fills in (`dspodfl.algorithms.Draws`).
    """

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part of a run.

        Args:
            k: Consecutive iterations, (iterations,), int64.
            part: The clients and links, and the seed of the run.
            rates: d_i(k) and b_ij(k) of the run, and its graph.

        Returns:
            v (iterations, clients of the part) and v̂ (iterations, links of the part), both bool.
        """
        ...


class Independent(Schedule, Protocol):
    """A schedule whose events are independent, with probabilities that it knows; it declares ``independent = True``."""

    def probabilities(self, k: np.ndarray, rates: Rates) -> Probabilities:
        """Return the firing probabilities of clients and links at iterations k."""
        ...

    def constant(self, rates: Rates) -> bool:
        """Return whether the probabilities are the same at every iteration."""
        ...


class Rule(Protocol):
    """How: θ, state = rule.step(θ, state, at).

    A rule may also have ``model(theta, state)``, the models that are evaluated (default: θ);
    ``averaged(theta, state)``, rows whose mean over clients is the average model of the network (default: the models
    that are evaluated); ``sent(p)``, the bytes that a client sends over a link in one use (default: 4p, one model in
    float32); and ``fit(shapes)``, which gives the same rule for a model with parameter tensors of these shapes. A rule,
    or a schedule, may have ``check(topology, rates)``, which raises `InputError` where the network of a run does not
    suit it: it is called with the `dspodfl.network.WeightedTopology` and the `dspodfl.network.Rates` of every seed
    before a study begins.
    """

    def init(self, theta: Tensor, links: int) -> Any:
        """Return the state before the first step.

        Args:
            theta: The initial models, (clients, p).
            links: The number of links.

        Returns:
            None, or tensors whose first axis is that of the clients, or `PerLink`, in tuples, lists or dictionaries.
        """
        ...

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """Take one iteration; return the new models and the new state, of the form that they had.

        Args:
            theta: The models, (clients, p).
            state: The state.
            at: The iteration: what fires, gradients, mixing and exchanges.

        Returns:
            The new models and the new state.
        """
        ...


FLOAT_BYTES = 4
"""Bytes of a parameter that is sent: float32, whatever the models are computed in."""


def evaluated_models(rule: Rule, theta: Tensor, state: Any) -> Tensor:
    """Return the models of a rule that are evaluated.

    Args:
        rule: The rule.
        theta: Its models, (clients, p).
        state: Its state.

    Returns:
        What its ``model`` gives, else ``theta``. Shape: (clients, p).
    """
    model = getattr(rule, "model", None)
    return theta if model is None else model(theta, state)


def averaged_models(rule: Rule, theta: Tensor, state: Any) -> Tensor | None:
    """Return the rows whose mean over clients is the average model of the network, where a rule says which.

    Args:
        rule: The rule.
        theta: Its models, (clients, p).
        state: Its state.

    Returns:
        What its ``averaged`` gives, (clients, p); None: the average is that of the models that are evaluated.
    """
    averaged = getattr(rule, "averaged", None)
    return None if averaged is None else averaged(theta, state)


def evaluates_other_models(rule: Rule) -> bool:
    """Return whether other models than θ are evaluated.

    Args:
        rule: The rule.

    Returns:
        Whether it has ``model``.
    """
    return getattr(rule, "model", None) is not None


def bytes_sent(rule: Rule, p: int) -> int:
    """Return the bytes that a client sends over a link in one use.

    Args:
        rule: The rule.
        p: The number of parameters of a model.

    Returns:
        What its ``sent`` gives, else 4p.

    >>> from dspodfl.algorithms import Simultaneous
    >>> bytes_sent(Simultaneous(), 10)
    40
    """
    sent = getattr(rule, "sent", None)
    return FLOAT_BYTES * p if sent is None else int(sent(p))


def fitted(rule: Rule, shapes: tuple[tuple[int, ...], ...]) -> Rule:
    """Return a rule that knows the shapes of the model, if it wants to.

    Args:
        rule: The rule.
        shapes: The shapes of the parameter tensors, in the order of ``named_parameters``.

    Returns:
        What its ``fit(shapes)`` gives, else the rule as it is.

    >>> from dspodfl.algorithms import Simultaneous
    >>> fitted(Simultaneous(), ((3, 2), (3,)))
    Simultaneous()
    """
    fit = getattr(rule, "fit", None)
    return rule if fit is None else fit(shapes)


def draws_independently(schedule: object) -> TypeGuard[Independent]:
    """Return whether a schedule declares that its events are independent, with known probabilities.

    Args:
        schedule: A schedule.

    Returns:
        Whether ``independent`` is true of the class that defines its call.

    >>> from dspodfl.algorithms import dspodfl
    >>> draws_independently(dspodfl), draws_independently(lambda k, part, rates: None)
    (True, False)
    """
    return bool(_declared(schedule, "independent", "__call__"))


def declared_mixes(rule: Rule) -> int | None:
    """Return how often a rule mixes in every iteration, if it declares it.

    Args:
        rule: A rule.

    Returns:
        Its ``mixes``; None: any number.
    """
    return getattr(rule, "mixes", None)


def needs_probability(rule: Rule) -> bool:
    """Return whether a rule declares that it needs the probabilities with which links fire.

    Args:
        rule: The rule.

    Returns:
        True where it has ``needs_probability = True``.
    """
    return bool(getattr(rule, "needs_probability", False))


def runs_directed(rule: Rule) -> bool:
    """Return whether a rule declares that it runs on directed graphs.

    Args:
        rule: The rule.

    Returns:
        True where it has ``directed = True``.
    """
    return bool(getattr(rule, "directed", False))


def by_direction(q: np.ndarray, links: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of both directions of the links of a directed graph.

    Args:
        q: Of links, or of i → j of all links and then of j → i of all, (iterations or 1, links or 2 · links).
        links: The number of links.

    Returns:
        Those of i → j, and those of j → i, (iterations or 1, links) each.

    >>> import numpy as np
    >>> there, back = by_direction(np.array([[0.1, 0.2, 0.3, 0.4]]), 2)
    >>> there.tolist(), back.tolist()
    ([[0.1, 0.2]], [[0.3, 0.4]])
    """
    return (q, q) if q.shape[1] == links else (q[:, :links], q[:, links:])


def rests_without_events(rule: Rule) -> bool:
    """Return whether a rule declares that a client without an event keeps its model and its state.

    Args:
        rule: A rule.

    Returns:
        Whether ``rests`` is true of the class that defines its step.
    """
    return bool(_declared(rule, "rests", "step"))


def sends_models(rule: Rule) -> bool:
    """Return whether a rule declares that clients send their models, and nothing else.

    What it mixes, and what it asks `Step.around` for, are then models, and ``send`` of an exchange gives the own row of
    the array that is exchanged, or of the first of several.

    Args:
        rule: A rule.

    Returns:
        Whether ``sends_models`` is true of the class that defines its step.
    """
    return bool(_declared(rule, "sends_models", "step"))


def fused_kernel(rule: Rule) -> str | None:
    """Return the fused kernel that computes the same as a rule, if it declares one.

    Args:
        rule: A rule.

    Returns:
        The ``kernel`` of the class that defines its step; None: PyTorch computes it.
    """
    found = _declared(rule, "kernel", "step")
    return found if isinstance(found, str) else None


def _declared(value: object, name: str, method: str) -> Any:
    """Return what a class declares, up to the one of its bases that defines a method; None if nothing."""
    for base in type(value).__mro__:
        if name in vars(base):
            return vars(base)[name]
        if method in vars(base):
            return None
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Algorithm:
    """A method as a value: what is run under one label.

    Args:
        label: What rows, figures and tables call it. Draws do not depend on it.
        schedule: When clients step and links exchange: a `Schedule`, a class of them, the name of a registered method,
            or ``"module:object"``.
        rule: How models change: a `Rule`, a class of them, the name of a registered rule, or ``"module:object"``; None:
            that of ``train.order``, which is ``simultaneous`` by default.
        local: What a client does with its gradient before it steps along it: a `dspodfl.algorithms.Local`, such as
            ``local.chain(local.clip(1.0), local.momentum(0.9))``, or a table ``{"clip": 1.0, "momentum": 0.9}``.
        settings: Numbers and words that schedule and rule are made with, by their names.

    Raises:
        InputError: the label, a part or the settings are of another type.

    >>> Algorithm("every fifth", schedule="dfedavg", settings={"period": 4}).settings["period"]
    4
    """

    label: str = field(kw_only=False)
    schedule: Any
    rule: Any = None
    local: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be an algorithm."""
        if not isinstance(self.label, str) or not self.label:
            raise InputError("label", self.label, "a string of at least one character")
        if not callable(self.schedule) and not isinstance(self.schedule, str):
            allowed = f"a Schedule, a callable (k, part, rates) -> Events, not a {type(self.schedule).__name__}"
            raise InputError("algorithms", self.label, allowed)
        if self.rule is not None and not isinstance(self.rule, str | type) and not callable(self.rule):
            missing = [name for name in ("init", "step") if not callable(getattr(self.rule, name, None))]
            if missing:
                allowed = f"a Rule, or its name: it has no {' and no '.join(missing)}"
                raise InputError(f"rule of {self.label!r}", type(self.rule).__name__, allowed)
        if not (self.local is None or isinstance(self.local, Mapping) or is_local(self.local)):
            allowed = f"{ALLOWED_LOCAL}, or a table such as {{'clip': 1.0}}"
            raise InputError(f"local of {self.label!r}", self.local, allowed)
        if not isinstance(self.settings, Mapping) or not all(isinstance(key, str) for key in self.settings):
            raise InputError(f"settings of {self.label!r}", self.settings, "a dictionary by names")
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))


def label_problem(label: object) -> str | None:
    """Return what a label must be, where it is not; None where it is fine.

    Args:
        label: A value that is given as a label.

    Returns:
        What follows "must be" in a message, or None.

    >>> label_problem("DGD, slow") is None, label_problem(" DGD") is None
    (True, False)
    """
    fine = isinstance(label, str) and label.strip() == label and label.isprintable() and 0 < len(label) <= MAX_LABEL
    return None if fine else f"1 to {MAX_LABEL} printable characters, without spaces at the ends"
