"""A study as a value: the settings of its seeds × its algorithms, and how their runs are evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from dspodfl.algorithms import FLOAT_BYTES, Attack, LearningRate, Rule, Schedule, bytes_sent, gates_links
from dspodfl.analysis import MetricsRow
from dspodfl.engine import Run
from dspodfl.network import LONGEST, Budget, EndedBy, Rates, WeightedTopology, ended_by
from dspodfl.problem.data import Federation
from dspodfl.problem.models import Model
from dspodfl.study.build_network import Network


@dataclass(frozen=True, eq=False)
class Setting:
    """What the runs of one seed share, whatever their algorithm.

    Args:
        seed: The seed of the runs.
        topology: The graph, how it changes, and the mixing weights.
        rates: How often clients step and links are used.
        data: The samples of each client.
        learning_rate: The step size at each iteration.
        budget: What a run may spend; None: no limit but iterations.
        caps: Algorithm -> the most iterations of its run, and the number that it is expected to take.
        own: Algorithm -> the network of those that run on another graph, or with other weights.
        attack: Who attacks, and how; None: all clients are honest.
        holds_server: Whether this process holds the servers of runs that have one.
    """

    seed: int
    topology: WeightedTopology
    rates: Rates
    data: Federation
    learning_rate: LearningRate
    budget: Budget | None
    caps: Mapping[str, tuple[int, int]]
    own: Mapping[str, Network] = field(default_factory=dict)
    attack: Attack | None = None
    holds_server: bool = True

    @cached_property
    def _with_server(self) -> Federation:
        """The data of the runs that have a server."""
        return self.data.with_server(self.rates.graph.n) if self.holds_server else self.data

    def run(self, method: Method, parameters: int) -> Run:
        """Return the run of an algorithm in this setting.

        Args:
            method: The algorithm; ``caps`` has its label.
            parameters: p, the number of parameters of a model.

        Returns:
            The run. It refers to the graph, rates and data of the setting, and copies nothing.
        """
        cap, need = self.caps[method.label]
        own = self.own.get(method.label)
        return Run(
            method.label,
            self.seed,
            self.topology if own is None else own.topology,
            self.rates if own is None else own.rates,
            method.schedule,
            self._with_server if own is not None and own.rates.graph.server else self.data,
            self.learning_rate,
            budget=self.budget,
            cap=cap,
            link_bytes=link_bytes(method.rule, parameters),
            link_models=link_models(method.rule, parameters),
            inverse_cap=method.inverse_cap,
            need=need,
            attack=self.attack,
            gated=gates_links(method.rule),
        )


@dataclass(frozen=True, eq=False)
class Method:
    """An algorithm of a study that is ready to run.

    Args:
        label: What rows and tables call it.
        schedule: When clients step and links exchange models.
        rule: How models change.
        inverse_cap: Steps are α times 1/p_i, at most this (`Run.inverse_cap`); None: steps are α.
    """

    label: str
    schedule: Schedule
    rule: Rule
    inverse_cap: float | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that decides a study's numbers: settings × algorithms, one model, and where it is evaluated.

    Args:
        settings: One for each seed.
        algorithms: What is compared in each of them.
        model: What clients train.
        batch_size: Samples in a minibatch; 0: all samples of a client.
        every: Evaluate at multiples of this number of iterations; None: not for this reason.
        points: Evaluate where a run's cost reaches each of this many equal parts of its budget; None: not for this
            reason.
        at_delay: Evaluate where the delay of a run reaches these values.
        precision: As ``train.precision`` has it.
        eval_samples: Test samples that models are evaluated on; 0: all.
        eval_clients: Clients of each run that are evaluated; 0: all.
        pairs: The (algorithm, setting) of each run, by index; by default all of them, algorithm by algorithm.
    """

    settings: Sequence[Setting]
    algorithms: Sequence[Method]
    model: Model
    batch_size: int
    every: int | None
    points: int | None
    at_delay: Sequence[float]
    precision: str = "auto"
    eval_samples: int = 0
    eval_clients: int = 0
    pairs: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        """Pair every algorithm with every setting, where nothing else is said."""
        if not self.pairs:
            product = [(a, s) for a in range(len(self.algorithms)) for s in range(len(self.settings))]
            object.__setattr__(self, "pairs", product)

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, in the order of ``pairs``: it decides their numbers in files and how they are stacked."""
        return [self.settings[s].run(self.algorithms[a], self.model.parameters) for a, s in self.pairs]

    @cached_property
    def samples_per_step(self) -> float:
        """The samples of a gradient: those of a minibatch, or the mean number that a client holds."""
        if self.batch_size:
            return self.batch_size
        sizes = [setting.data.sizes for setting in self.settings]
        return float(sum(map(sum, sizes)) / max(1, sum(map(len, sizes))))

    @cached_property
    def rules(self) -> list[Rule]:
        """The rule of each run; runs of one rule advance together."""
        return [self.algorithms[a].rule for a, _ in self.pairs]

    @cached_property
    def setting_of(self) -> list[int]:
        """The index of the setting of each run."""
        return [s for _, s in self.pairs]

    @cached_property
    def iterations(self) -> int:
        """The most iterations that any run takes."""
        return max(run.cap or LONGEST for run in self.runs)

    @cached_property
    def longest(self) -> int:
        """The iterations that the longest run is expected to take."""
        return max(run.need or run.cap or LONGEST for run in self.runs)

    @cached_property
    def groups(self) -> list[int]:
        """A number for each run: those of equal rules and attacks have the same, counted in the order of the runs."""
        found: list[tuple[Rule, Attack | None]] = []
        numbers = []
        for rule, run in zip(self.rules, self.runs, strict=True):
            same = (n for n, (other, attack) in enumerate(found) if run.attack == attack and _same(rule, other))
            known = next(same, len(found))
            found += [(rule, run.attack)] if known == len(found) else []
            numbers.append(known)
        return numbers

    def evaluations(self, iterations: int) -> int:
        """Return how often a run is evaluated, at most.

        Args:
            iterations: The number of iterations of the run.

        Returns:
            The number of evaluations, that of iteration 0 included.
        """
        regular = -(-iterations // self.every) if self.every else 0
        return 1 + regular + (self.points or 0) + len(self.at_delay)

    def ended_by(self, run: int, row: MetricsRow) -> EndedBy | None:
        """Return why a run ended at a row of its metrics.

        Args:
            run: The number of the run.
            row: Its metrics at an iteration.

        Returns:
            The reason; None where the run goes on after this row.
        """
        found = self.runs[run]
        cap = found.cap or LONGEST
        return ended_by(found.budget or Budget("iterations", cap), cap, row)

    def initial(self, runs: Sequence[Run]) -> list[Tensor]:
        """Return the initial model of each run, from which all of its clients start.

        Args:
            runs: Runs of this study.

        Returns:
            A model for each run, shape (p,); runs of one seed share it.
        """
        models = {seed: self.model.initial(seed) for seed in {run.seed for run in runs}}
        return [models[run.seed] for run in runs]


def joined(studies: Sequence[Study]) -> Study:
    """Return the runs of several studies as one study, one study after the other.

    Args:
        studies: At least one; all are evaluated alike, on models of one kind.

    Returns:
        A study with the model of the first one. Each run keeps its algorithm and its setting.
    """
    settings: list[Setting] = []
    algorithms: list[Method] = []
    pairs: list[tuple[int, int]] = []
    for study in studies:
        pairs += [(len(algorithms) + a, len(settings) + s) for a, s in study.pairs]
        settings += study.settings
        algorithms += study.algorithms
    return replace(studies[0], settings=settings, algorithms=algorithms, pairs=pairs)


def link_bytes(rule: Rule, parameters: int) -> int:
    """Return the bytes that one use of a link carries.

    Args:
        rule: How models change; what it sends, or a model of float32 each way.
        parameters: p, the number of parameters of a model.

    Returns:
        Bytes, both ways together.

    >>> from dspodfl.algorithms import Simultaneous
    >>> link_bytes(Simultaneous(), 10)
    80
    """
    return 2 * bytes_sent(rule, parameters)


def link_models(rule: Rule, parameters: int) -> float:
    """Return how many models one use of a link carries each way: the factor of its raw transmission delay.

    Args:
        rule: How models change.
        parameters: p, the number of parameters of a model.

    Returns:
        The bytes that are sent, by those of a model of float32; exactly 1 for one model.
    """
    return bytes_sent(rule, parameters) / (FLOAT_BYTES * parameters)


def _same(one: Rule, other: Rule) -> bool:
    """Whether two rules do the same: one object, or equal ones of one class (as frozen dataclasses are)."""
    return one is other or (type(one) is type(other) and bool(one == other))
