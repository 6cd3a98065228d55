"""Algorithms that are given from Python, and the configuration that names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspodfl.algorithms import ALGORITHMS, Algorithm, label_problem, local_table, registered_name
from dspodfl.config import AlgorithmTable, Config, label_of
from dspodfl.errors import InputError

_FIELD = "algorithms"
_ALLOWED = "a list of names, tables, Algorithm(label, schedule=…, rule=…) and schedules"


@dataclass(frozen=True, eq=False)
class Brought:
    """A configuration, and the algorithms of it that are objects of Python."""

    config: Config
    """With the labels of these algorithms in their places."""
    named: Config
    """With those algorithms alone that can be written in a file; the default ones if there are none."""
    algorithms: Mapping[str, Algorithm]
    """Label -> what was given."""

    @staticmethod
    def of(
        config: Config, algorithms: Sequence[Any] | None = None, schedules: Mapping[str, Any] | None = None
    ) -> Brought:
        """Put together what a configuration names and what is given from Python.

        Args:
            config: names algorithms, which count where no ``algorithms`` are given.
            algorithms: names, tables, `Algorithm` values and schedules; these alone are then run.
            schedules: by labels, run next to the others (alone, where the configuration names none).

        Raises:
            InputError, ConfigError: something is no algorithm, or two have the same label.
        """
        own: dict[str, Algorithm] = {}
        items: list[Any] = [*config.algorithms] if "algorithms" in config.model_fields_set else []
        if algorithms is not None:
            if isinstance(algorithms, str | bytes) or not isinstance(algorithms, Iterable) or not algorithms:
                raise InputError(_FIELD, algorithms if isinstance(algorithms, str) else repr(algorithms), _ALLOWED)
            items = [_item(given, config, own) for given in algorithms]
        for label, schedule in (schedules or {}).items():
            _check_free(label, "schedules")
            own[label] = with_rule(Algorithm(label, schedule=schedule), config)
            items += [label] if label not in items else []
        if algorithms is None and not own:
            return Brought(config, config, {})
        written = [given for given in items if not (isinstance(given, str) and given in own)]
        values = {key: value for key, value in config.model_dump(exclude_unset=True).items() if key != _FIELD}
        named = Config(**values, **({_FIELD: written} if written else {}))
        checked = iter(named.algorithms)
        whole = [given if isinstance(given, str) and given in own else next(checked) for given in items]
        labels = [label_of(given) for given in whole]
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise InputError(_FIELD, twice[0], "the label of one algorithm alone")
        return Brought(named.model_copy(update={_FIELD: whole}), named, own)


def _item(given: Any, config: Config, own: dict[str, Algorithm]) -> Any:
    """Return an algorithm as a configuration has it; those that no file can name are added to ``own``."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping | AlgorithmTable):
        return dict(given)
    if not isinstance(given, Algorithm):
        if not callable(given):
            raise InputError(_FIELD, f"a {type(given).__name__}", _ALLOWED)
        name = getattr(given, "__name__", type(given).__name__)
        given = Algorithm(name, schedule=given)
    problem = label_problem(given.label)
    if problem:
        raise InputError("label", given.label, problem)
    given = with_rule(given, config)
    table = (
        given.local if given.local is None or isinstance(given.local, Mapping) else local_table.as_table(given.local)
    )
    writable = given.local is None or table is not None
    if isinstance(given.schedule, str) and isinstance(given.rule, str) and writable:
        name = registered_name(given.schedule)
        entry = ALGORITHMS.get(name)
        usual = None if entry is None else config.train.order if entry.rule is None else name
        parts = {"name": name} if given.rule == usual else {"schedule": given.schedule, "rule": given.rule}
        steps = {} if table is None else {"local": dict(table)}
        return {**parts, "label": given.label, "settings": dict(given.settings), **steps}
    _check_free(given.label, _FIELD)
    if given.label in own:
        raise InputError(_FIELD, given.label, "the label of one algorithm alone")
    own[given.label] = given
    return given.label


def with_rule(algorithm: Algorithm, config: Config) -> Algorithm:
    """Return an algorithm with a rule: that of ``train.order`` where it has none.

    Args:
        algorithm: As it was given.
        config: The configuration that it is run with.

    Returns:
        The algorithm, whose rule is not None.
    """
    return replace(algorithm, rule=config.train.order) if algorithm.rule is None else algorithm


def _check_free(label: str, field: str) -> None:
    """Refuse the name of a registered method as a label of another one."""
    if registered_name(label) in ALGORITHMS:
        raise InputError(field, label, f"a name of its own, not one of {', '.join(ALGORITHMS)}")
