"""From a configuration to a study: the setting of every seed, and the algorithms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dspodfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Attack,
    fitted,
    gates_links,
    inverse_cap,
    make,
    runs_directed,
    without_code,
)
from dspodfl.algorithms import learning_rate as lr
from dspodfl.config import AlgorithmTable, footprint, label_of, schema
from dspodfl.engine import Run, horizon
from dspodfl.errors import InputError, user_code
from dspodfl.network import Events, Part, Rates
from dspodfl.problem import models
from dspodfl.problem.data import Dataset, Federation
from dspodfl.study.brought import with_rule
from dspodfl.study.build_attack import attacked, build_attack
from dspodfl.study.build_network import Network, build_network, own_networks
from dspodfl.study.build_problem import build_problem, check_optimum, with_optimum
from dspodfl.study.rule_check import check_rule
from dspodfl.study.study import Method, Setting, Study, link_bytes, link_models
from dspodfl.study.user_inputs import UserInputs, resolve, user_names
from dspodfl.study.waves import state_numbers

_DATA = 0.3
"""The share of building that the data of all seeds are taken to be."""


def build(
    config: schema.Config,
    inputs: UserInputs | None = None,
    library: dict[str, Dataset] | None = None,
    on_progress: footprint.OnProgress | None = None,
) -> tuple[schema.Config, Study]:
    """Build the study of a configuration: graphs, rates, data, model and algorithms.

    What is large gives a warning with numbers.

    Args:
        config: The configuration.
        inputs: What was given in Python instead of being named there.
        library: Datasets by name. Those found there are taken, and others put there: studies that share a library can
            be stacked on one copy of their samples.
        on_progress: Called with what is being built, and the share that is done.

    Returns:
        The configuration with all values that follow from the inputs, and the study.

    Raises:
        InputError: Something cannot be built, or does not fit into memory; the latter before anything is built.
        DataError: The data cannot be read.

    >>> config, study = build(schema.Config(seeds=2, algorithms=["dspodfl", "dgd"], train={"iterations": 10}))
    >>> [(run.algorithm, run.seed) for run in study.runs]
    [('dspodfl', 0), ('dspodfl', 1), ('dgd', 0), ('dgd', 1)]
    """
    inputs = inputs or UserInputs()
    config = resolve(config, inputs)
    _announce(config, inputs, on_progress)
    progress = _Progress(config, on_progress)
    learning_rate = _learning_rate(config)
    data, model = build_problem(config, inputs, {} if library is None else library, progress.tell)
    shapes = tuple(tuple(shape) for shape in model.shapes.values())
    methods = [_method(given, config, inputs) for given in config.algorithms]
    methods = [replace(method, rule=fitted(method.rule, shapes)) for method in methods]
    for method in methods:
        _check_directed(method, config)
        check_rule(method.label, method.rule, model.parameters)
    attack = build_attack(config, methods)
    maker = _SettingMaker(config, inputs, learning_rate, methods, model, progress, attack)
    settings = [maker.setting(seed, attacked(federation, attack)) for seed, federation in data.items()]
    if inputs.code or not user_names(config, algorithms=False):
        graphs = [settings[0].rates.graph, *(network.rates.graph for network in settings[0].own.values())]
        kept = [
            state_numbers(method.rule, settings[0].run(method, model.parameters), model.parameters)
            for method in methods
        ]
        footprint.check_model(config, model, max(graph.links for graph in graphs), max(kept))
        check_optimum(model, data[config.seed])
        known = with_optimum(model, [setting.data for setting in settings], attack.clients if attack else ())
        settings = [replace(setting, data=federation) for setting, federation in zip(settings, known, strict=True)]
    study = Study(
        settings,
        methods,
        model,
        0 if config.train.batch_size == "full" else config.train.batch_size,
        config.eval.every,
        config.eval.points,
        sorted(set(config.eval.at_delay)),
        config.train.precision,
        eval_samples=config.eval.samples or 0,
        eval_clients=config.eval.clients or 0,
    )
    return config, study


class LargeStudyWarning(UserWarning):
    """Building a study takes much memory or time."""


def _announce(config: schema.Config, inputs: UserInputs, on_progress: footprint.OnProgress | None) -> None:
    """Refuse what does not fit, and say what is large, before anything is built."""
    note = footprint.check(config, graph=inputs.graph is None, data=inputs.data is None)
    if note is not None and on_progress is not None:
        on_progress(note, 0.0)
    elif note is not None:
        warnings.warn(note, LargeStudyWarning, stacklevel=3)


@dataclass(frozen=True, eq=False)
class _Progress:
    """Says what of which seed is being built. The data of all seeds come first, then the network of each."""

    config: schema.Config
    on_progress: footprint.OnProgress | None

    def tell(self, seed: int, what: str, share: float) -> None:
        """Say what of a seed is being built; a share of what there is to do for it is done."""
        if self.on_progress:
            done = (seed - self.config.seed + share) / self.config.seeds
            whole = _DATA * done if what == "data" else _DATA + (1 - _DATA) * done
            self.on_progress(f"seed {seed}: {what}", whole)


@dataclass(frozen=True, eq=False)
class _SettingMaker:
    """Makes the setting of each seed."""

    config: schema.Config
    inputs: UserInputs
    learning_rate: lr.LearningRate
    methods: Sequence[Method]
    model: models.Model
    progress: _Progress
    attack: Attack | None

    def setting(self, seed: int, data: Federation) -> Setting:
        """Return the setting of a seed: its network, its data, and the most iterations of each algorithm."""
        caps: dict[str, tuple[int, int]] = {}

        def duration(first: Network) -> int:
            caps.update(self._caps(seed, first, self._own(seed, first), data))
            return max(most for most, _ in caps.values())

        network = build_network(
            self.config,
            seed,
            self.learning_rate,
            graph=self.inputs.graph,
            duration=duration,
            tell=partial(self.progress.tell, seed),
        )
        own = self._own(seed, network)
        caps = caps or self._caps(seed, network, own, data)
        budget = self.config.train.budget
        shared = (network.topology, network.rates, data, self.learning_rate, budget, caps)
        return Setting(seed, *shared, own=own, attack=self.attack)

    def _own(self, seed: int, network: Network) -> dict[str, Network]:
        """Return the networks of the algorithms that have a graph or weights of their own."""
        schedules = {method.label: method.schedule for method in self.methods}
        return own_networks(self.config, seed, self.learning_rate, network, schedules)

    def _caps(
        self, seed: int, shared: Network, own: Mapping[str, Network], data: Federation
    ) -> dict[str, tuple[int, int]]:
        """Return the most iterations of each algorithm's run, and the number that it is expected to take."""
        train, found = self.config.train, {}
        for method in self.methods:
            label, schedule = method.label, method.schedule
            network = own.get(label, shared)
            if label not in ALGORITHMS:
                _check_schedule(label, schedule, network.rates, seed)
            run = Run(
                label,
                seed,
                network.topology,
                network.rates,
                schedule,
                data,
                self.learning_rate,
                link_bytes=link_bytes(method.rule, self.model.parameters),
                link_models=link_models(method.rule, self.model.parameters),
                inverse_cap=method.inverse_cap,
                gated=gates_links(method.rule),
            )
            _check_network(method, run)
            found[label] = horizon.cap(run, train.budget, train.iterations)
        return found


def _learning_rate(config: schema.Config) -> lr.LearningRate:
    table = config.train.learning_rate
    return lr.LEARNING_RATES[table.kind].make({}, table.model_dump(exclude={"kind"}))


def _method(given: str | AlgorithmTable, config: schema.Config, inputs: UserInputs) -> Method:
    """Return an algorithm of the configuration with its schedule and its rule."""
    label = label_of(given)
    if label in inputs.algorithms:
        value = with_rule(inputs.algorithms[label], config)
    else:
        value = as_algorithm(given, config)
        value = value if inputs.code else without_code(value)
    made = make(value, value_of=partial(_value_of, config))
    return Method(label, *made, inverse_cap(value.settings))


def as_algorithm(given: str | AlgorithmTable, config: schema.Config) -> Algorithm:
    """Return an algorithm of a configuration as a value; where it names no rule, the rule is ``train.order``."""
    table: dict[str, Any] = (
        {"name" if given in ALGORITHMS else "schedule": given} if isinstance(given, str) else dict(given)
    )
    name, rule = table.get("name"), table.get("rule")
    if rule is None and name is not None and ALGORITHMS[name].rule is not None:
        rule = name
    schedule, settings = name or table["schedule"], table.get("settings", {})
    local = table["local"].model_dump() if table.get("local") is not None else None
    rule = rule or config.train.order
    return Algorithm(label_of(given), schedule=schedule, rule=rule, local=local, settings=settings)


def _check_directed(method: Method, config: schema.Config) -> None:
    """Refuse a method that mixes with symmetric weights where the directions of a link fire by themselves."""
    if config.graph.directed and not runs_directed(method.rule):
        known = [name for name, entry in ALGORITHMS.items() if entry.directed]
        reason = "it mixes with symmetric weights, which needs both directions of a link to fire together"
        allowed = f"one of {', '.join(known)} where graph.directed = true ({reason})"
        raise InputError("algorithms", method.label, allowed)


def _value_of(config: schema.Config, key: str) -> Any:
    """Return the value of a dotted key of a configuration."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def _check_network(method: Method, run: Run) -> None:
    """Let a method refuse a network that does not suit it: ``check(topology, rates)`` of its schedule and its rule."""
    run.step_sizes(np.zeros(1, dtype=np.int64))
    for part in (method.schedule, method.rule):
        check = getattr(part, "check", None)
        if callable(check):
            what = f"an algorithm that suits the network, but check of {type(part).__name__}"
            with user_code.guarded("algorithms", method.label, what):
                check(run.topology, run.rates)


def _check_schedule(name: str, found: Any, drawn: Rates, seed: int) -> None:
    """Try a custom schedule on the first iteration, so that no run begins with one that is not valid."""
    allowed = "a Schedule, a callable (k, part, rates) -> Events"
    if not callable(found):
        raise InputError("algorithms", name, f"{allowed}, not a {type(found).__name__}")
    graph = drawn.graph
    with user_code.guarded("algorithms", name, f"{allowed}; it"):
        events = found(np.zeros(1, dtype=np.int64), Part.whole(graph, seed), drawn)
    if not isinstance(events, Events):
        raise InputError("algorithms", name, f"{allowed}; it gave a {type(events).__name__}")
    parts = [("v", events.v, graph.n), ("v_hat", events.v_hat, graph.links)]
    parts += [("back", events.back, graph.links)] if events.back is not None else []
    for what, given, count in parts:
        shape, dtype = np.shape(given), getattr(given, "dtype", type(given).__name__)
        if shape != (1, count) or dtype != np.bool_:
            wanted = f"{what} of shape (iterations, {count}), bool"
            raise InputError("algorithms", name, f"{allowed} with {wanted}; at k = [0] it gave {shape}, {dtype}")
