"""From an algorithm as it was given, by names or as objects, to the schedule and the rule that are run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from dspodfl.algorithms import registry
from dspodfl.algorithms.base import SIMULTANEOUS, Algorithm, Rule, Schedule
from dspodfl.algorithms.draws import PARAMETER, Draws, bound, reference_of
from dspodfl.algorithms.inverse_rates import without_inverse_rates
from dspodfl.algorithms.local_table import from_table
from dspodfl.algorithms.registry import ALGORITHMS
from dspodfl.algorithms.with_local import with_local
from dspodfl.errors import InputError, user_code

FIELD = "algorithms"


def make(algorithm: Algorithm, *, value_of: Callable[[str], Any] | None = None) -> tuple[Schedule, Rule]:
    """Make the schedule and the rule of an algorithm from its settings; code that it names is imported.

    Args:
        algorithm: with parts by name or as objects; without a rule, it is made with ``simultaneous``.
        value_of: gives the value of a key of the configuration, where a setting is left out and has such a key.

    Returns:
        The schedule and the rule. Each part takes the settings that it has a parameter for; ``inverse_rates`` is for
        the one who runs them (`dspodfl.algorithms.inverse_cap`). A schedule, or what makes
        it, that has a parameter ``draws`` receives the `Draws` of its method.

    Raises:
        InputError: a name is not known, code cannot be imported or called, a setting is taken by no part, or ``local``
            is given to a method that takes plain gradients.

    >>> schedule, rule = make(Algorithm("mine", schedule="dfedavg", settings={"period": 2}))
    >>> type(schedule).__name__, type(rule).__name__
    ('Sporadic', 'Simultaneous')
    """
    algorithm = replace(algorithm, rule=SIMULTANEOUS) if algorithm.rule is None else algorithm
    schedule_name, rule_name = (part if isinstance(part, str) else "" for part in (algorithm.schedule, algorithm.rule))
    found = registry.settings_problem(schedule_name, rule_name, algorithm.settings)
    if found:
        raise InputError(f"{FIELD}.settings.{found[0]}", found[1], f"{found[2]} (of {algorithm.label!r})")
    algorithm = replace(algorithm, settings=without_inverse_rates(algorithm.settings))
    settings = _defaults({schedule_name, rule_name}, value_of) | dict(algorithm.settings)
    schedule, rule = _schedule(algorithm.schedule), _rule(algorithm.rule)
    makes_schedule, makes_rule = _makes_schedule(schedule, settings), _makes_rule(rule)
    _check_taken(algorithm, [part for part, makes in ((schedule, makes_schedule), (rule, makes_rule)) if makes])
    draws = Draws(_method(algorithm.schedule))
    own = {PARAMETER: draws} if PARAMETER in _parameters(schedule)[0] else {}
    made_schedule = _made(algorithm, schedule, settings | own) if makes_schedule else schedule
    made_schedule = bound(made_schedule, _parameters(made_schedule)[0], draws)
    made_rule = _made(algorithm, rule, settings) if makes_rule else rule
    missing = [name for name in ("init", "step") if not callable(getattr(made_rule, name, None))]
    if missing:
        allowed = f"a Rule with init(theta, links) and step(theta, state, at): no {' and no '.join(missing)}"
        raise InputError(f"{FIELD}.rule", _shown(algorithm.rule), allowed)
    return made_schedule, _with_local(algorithm, made_rule)


def _with_local(algorithm: Algorithm, rule: Any) -> Any:
    """Return a rule with the transformation of its algorithm; the rule itself where there is none."""
    given = algorithm.local
    found = from_table(given) if isinstance(given, Mapping) else given
    if found is None:
        return rule
    names = [part if isinstance(part, str) else "" for part in (algorithm.schedule, algorithm.rule)]
    problem = registry.local_problem(*names)
    if problem:
        raise InputError(f"{FIELD}.local", _shown(given), f"{problem} (of {algorithm.label!r})")
    return with_local(rule, found)


def without_code(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm with built-in parts instead of those that are code of a user; their names are checked.

    Args:
        algorithm: With parts by name.

    Returns:
        An algorithm that imports no code of a user.

    Raises:
        InputError: a name is neither registered nor of the form ``"package.module:object"``.

    >>> without_code(Algorithm("a", schedule="dgd", rule="mine:Momentum")).rule
    'simultaneous'
    """
    schedule, rule = algorithm.schedule, algorithm.rule
    parts = ((FIELD, schedule, ALGORITHMS, "dspodfl"), (f"{FIELD}.rule", rule, registry.known_rules(), SIMULTANEOUS))
    names = []
    for field, name, known, instead in parts:
        if name not in known:
            user_code.check_name(name, field)
        names.append(name if name in known else instead)
    both = schedule in ALGORITHMS and rule in registry.known_rules()
    settings = algorithm.settings if both else {}
    return Algorithm(algorithm.label, schedule=names[0], rule=names[1], local=algorithm.local, settings=settings)


def named(name: str, **settings: Any) -> Schedule:
    """Return the schedule of a registered method.

    Args:
        name: of the method.
        **settings: those of the method; None is as if it were left out.

    Returns:
        The schedule.

    Raises:
        InputError: the method is not registered, or does not take a setting.
    """
    if name not in ALGORITHMS:
        raise InputError(FIELD, name, str(registry.schedule_problem(name)))
    given = {key: value for key, value in settings.items() if value is not None}
    return make(Algorithm(name, schedule=name, settings=given))[0]


def _schedule(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    return _imported(ALGORITHMS[given].schedule) if given in ALGORITHMS else user_code.load(given, FIELD)


def _method(given: Any) -> str:
    """Return what the draws of a schedule are addressed by: its registered name, or ``"module:object"``."""
    reference = given if isinstance(given, str) else reference_of(given)
    return next((name for name, entry in ALGORITHMS.items() if reference in (name, entry.schedule)), reference)


def _rule(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    known = registry.known_rules()
    return _imported(known[given]) if given in known else user_code.load(given, f"{FIELD}.rule")


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _defaults(names: set[str], value_of: Callable[[str], Any] | None) -> dict[str, Any]:
    """Return the settings that the configuration has elsewhere, of some registered methods."""
    entries = [ALGORITHMS[name] for name in names if name in ALGORITHMS]
    keys = {key: setting.key for entry in entries for key, setting in entry.settings.items() if setting.key is not None}
    return {key: value_of(place) for key, place in keys.items()} if value_of is not None else {}


def _makes_schedule(part: Any, settings: Mapping[str, Any]) -> bool:
    """Return whether a part is no schedule, but a class, or a function that is called with settings alone."""
    if isinstance(part, type):
        return True
    if not inspect.isfunction(part):
        return False
    signature = inspect.signature(part)
    required = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind in _REQUIRED]
    given = {PARAMETER: None} if PARAMETER in signature.parameters else {}
    try:
        signature.bind(None, None, None, **given)
    except TypeError:
        return all(name in settings or name == PARAMETER for name in required)
    return False


def _makes_rule(part: Any) -> bool:
    """Return whether a part is no rule, but a class of rules, or a function that makes one."""
    return isinstance(part, type) or (callable(part) and not hasattr(part, "step"))


_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REQUIRED = (inspect.Parameter.POSITIONAL_ONLY, *_NAMED)


def _parameters(part: Any) -> tuple[list[str], bool]:
    """Return the names of the settings that a part takes, and whether it takes any others."""
    try:
        parameters = inspect.signature(part).parameters.values()
    except (TypeError, ValueError):
        return [], False
    return [p.name for p in parameters if p.kind in _NAMED], any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_taken(algorithm: Algorithm, makers: list[Any]) -> None:
    """Refuse settings that no part takes."""
    taken = [_parameters(part) for part in makers]
    known = dict.fromkeys(name for names, _ in taken for name in names if name != PARAMETER)
    if any(others for _, others in taken):
        known |= dict.fromkeys(key for key in algorithm.settings if key != PARAMETER)
    for key, value in algorithm.settings.items():
        if key not in known:
            allowed = f"{registry.not_taken(known)} (of {algorithm.label!r})"
            raise InputError(f"{FIELD}.settings.{key}", _shown(value), allowed)


def _made(algorithm: Algorithm, part: Any, settings: Mapping[str, Any]) -> Any:
    names, others = _parameters(part)
    taken = {key: value for key, value in settings.items() if others or key in names}
    with user_code.guarded(FIELD, algorithm.label, f"made of its settings, but {getattr(part, '__name__', part)}"):
        return part(**taken)


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
