"""On the processor's cores: one run, many runs together, many clients, and the memory that they take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks import memory
from benchmarks.clients import against_clients
from benchmarks.floors import NOTHING, Load, load_of
from benchmarks.loops import CarefulLoop, ResearchLoop
from benchmarks.method_loops import LOOPS
from benchmarks.rows import BATCH, Bench, Row, starts
from benchmarks.rule_loop import MATRIX_LOOPS, RuleLoop
from benchmarks.turns import Repeated, Steady, Work, in_turns, ratio, say
from benchmarks.worlds import SAMPLES, images, make_method, make_run, shared, squarest
from dspodfl.algorithms import ALGORITHMS, PAPER, fitted
from dspodfl.engine import Run, Stack
from dspodfl.network import generate
from dspodfl.problem.data import Dataset, Federation, partitions
from dspodfl.problem.models import build

Group = Callable[[], Iterator[Row]]
DGD_ONLY = "the loops do DGD alone"
_GIB = 2**30
TREES = ("relay",)
"""Methods that need a tree."""
NAMES = ("one", "methods", "stacked", "sparse", "memory", "clients")


def groups(bench: Bench, quick: bool) -> dict[str, Group]:
    """What can be measured here, by name."""
    many = 2_000 if quick else 10_000
    counts = (1, 10, 100, 1_000) if quick else (1, 10, 100, 1_000, 10_000)

    def fashion() -> Dataset:
        return images("fmnist", "mini")

    return {
        "one": lambda: one_run(bench, fashion()),
        "methods": lambda: methods(bench, fashion()),
        "stacked": lambda: stacked_runs(bench, fashion()),
        "sparse": lambda: sparse_graph(bench, fashion(), many),
        "memory": lambda: peak_memory(bench, 5_000),
        "clients": lambda: against_clients(bench, fashion(), counts, looped=100 if quick else 1_000),
    }


def paper_run(algorithm: str, dataset: Dataset, seed: int, clients: int = 10) -> Run:
    """A run of the paper's default setting; graph and rates are those of seed 0, whatever the seed."""
    graph = generate("geometric", clients, 0, radius=0.4)
    parts = partitions.labels(dataset.y_train, clients, seed, per_client=1)
    return make_run(algorithm, graph, Federation(dataset, parts.shards, {}), seed=seed)


def one_run(bench: Bench, dataset: Dataset) -> Iterator[Row]:
    """One DGD iteration of the paper's default run against both loops."""
    say("one DGD iteration of 10 clients, compared with the loops")
    model = build("svm", dataset.input_shape, dataset.outputs)
    run = paper_run("dgd", dataset, 0)
    stack = Stack([run])
    engine = Steady(stack, bench.problem(model, stack), starts(model, [run]), bench.seconds)
    careful, research = (kind(model, run, BATCH, bench.device) for kind in (CarefulLoop, ResearchLoop))
    loops = [Repeated(loop.iterate, bench.device, bench.seconds) for loop in (careful, research)]
    ours, *theirs = in_turns([engine, *loops], bench.rounds)
    ratios = [ratio(times, ours) for times in theirs]
    row = partial(Row, per="iteration", floor=load_of(model, run, BATCH).floor(bench.machine, bench.precision))
    name = f"svm, {dataset.name}, 10 clients, batch {BATCH}, DGD"
    aimed = bench.device.type == "cpu"
    yield row(
        "one/dgd",
        name,
        statistics.median(ours),
        careful=ratios[0],
        research=ratios[1],
        target="≥ 15× careful, ≥ 40× research" if aimed else "",
        met=ratios[0] >= 15 and ratios[1] >= 40 if aimed else None,
        more={"times": ours},
    )
    for key, what, times, other in (
        ("careful", "careful loop", theirs[0], (1.0, ratio(theirs[1], theirs[0]))),
        ("research", "research loop", theirs[1], (ratio(theirs[0], theirs[1]), 1.0)),
    ):
        median = statistics.median(times)
        yield row(f"one/{key}", f"  the {what}", median, careful=other[0], research=other[1], more={"times": times})


METHODS = (*LOOPS, *(name for name in ALGORITHMS if name not in LOOPS))
"""Every registered method; those with a loop of their own come first."""


def methods(bench: Bench, dataset: Dataset, clients: int = 10, names: Sequence[str] = METHODS) -> Iterator[Row]:
    """One iteration of methods against careful loops of the same methods."""
    model = build("svm", dataset.input_shape, dataset.outputs)
    graph = generate("geometric", clients, 0, radius=0.4)
    parts = partitions.labels(dataset.y_train, clients, 0, per_client=1)
    data = Federation(dataset, parts.shards, {})
    for name in names:
        say(f"one iteration of {name}, compared with its loop")
        least, seconds = (8, bench.seconds) if name in LOOPS else (1, bench.seconds / 4)
        run, rule = make_method(name, generate("path", clients, 0) if name in TREES else graph, data)
        rule = fitted(rule, tuple(tuple(shape) for shape in model.shapes.values()))
        stack = Stack([run])
        engine = Steady(stack, bench.problem(model, stack), starts(model, [run]), seconds, rule=rule)
        if name in LOOPS:
            iterate = LOOPS[name](model, run, BATCH, bench.device).iterate
        else:
            iterate = MATRIX_LOOPS.get(name, RuleLoop)(model, run, rule, BATCH, bench.device).iterate
        loop = Repeated(iterate, bench.device, seconds)
        ours, theirs = in_turns([engine, loop], bench.rounds)
        found = ratio(theirs, ours)
        yield Row(
            f"methods/{name}",
            f"svm, {dataset.name}, {clients} clients, batch {BATCH}, {name}",
            statistics.median(ours),
            "iteration",
            load_of(model, run, BATCH).floor(bench.machine, bench.precision),
            careful=found,
            target=f"≥ {least}× careful",
            met=found >= least,
            notes=("the research loop does DGD alone",),
            more={"times": ours, "loop": theirs},
        )


def stacked_runs(bench: Bench, dataset: Dataset, seeds: int = 25, each: int = 5) -> Iterator[Row]:
    """Runs that advance together, per run, against one run of the same kind alone.

    Graph and rates are the same in all of them, so that a stacked run does what the single one does. The base of the
    mixed stack is the mean of its algorithms' single runs.
    """
    model = build("svm", dataset.input_shape, dataset.outputs)
    algorithms = list(PAPER)
    stacks = {name: [paper_run(name, dataset, 0)] for name in algorithms}
    stacks |= {f"{name} × {seeds}": [paper_run(name, dataset, s) for s in range(seeds)] for name in ("dgd", "dspodfl")}
    stacks["all"] = [paper_run(name, dataset, s) for name in algorithms for s in range(each)]
    say(f"{seeds} runs together, compared with single ones")
    works = []
    for runs in stacks.values():
        stack = Stack(runs)
        works.append(Steady(stack, bench.problem(model, stack), starts(model, runs), bench.seconds))
    run = stacks["dgd"][0]
    loops = [kind(model, run, BATCH, bench.device) for kind in (CarefulLoop, ResearchLoop)]
    plain = [Repeated(loop.iterate, bench.device, bench.seconds) for loop in loops]
    *found, careful, research = in_turns([*works, *plain], bench.rounds)
    times = dict(zip(stacks, found, strict=True))
    single = [statistics.fmean(alone) for alone in zip(*(times[name] for name in algorithms), strict=True)]
    cases = [(f"{name} × {seeds}", name, times[name]) for name in ("dgd", "dspodfl")]
    cases.append(("all", f"{len(algorithms)} algorithms × {each} seeds", single))
    for key, name, base in cases:
        runs = stacks[key]
        ours = [seconds / len(runs) for seconds in times[key]]
        load = sum((load_of(model, run, BATCH) for run in runs), NOTHING) * (1 / len(runs))
        share = 1 / ratio(base, ours)
        dgd = name == "dgd"
        yield Row(
            f"stacked/{name}",
            f"{len(runs)} runs together: {name}; {share:.2f}× one alone",
            statistics.median(ours),
            "run-iteration",
            load.floor(bench.machine, bench.precision),
            ratio(careful, ours) if dgd else None,
            ratio(research, ours) if dgd else None,
            "≤ 0.9× one alone",
            share <= 0.9,
            () if dgd else (DGD_ONLY,),
            {"share": share, "alone": statistics.median(base), "times": ours},
        )


def sparse_graph(
    bench: Bench, dataset: Dataset, clients: int, degree: int = 4, samples: int = SAMPLES
) -> Iterator[Row]:
    """One DGD iteration of very many clients, on a torus, and on a random graph whose neighbours lie anywhere."""
    model = build("svm", dataset.input_shape, dataset.outputs)
    data = shared(dataset, clients, samples)
    graphs = {
        "torus": squarest(clients),
        f"random regular graph of degree {degree}": generate(
            "regular", clients, 0, degree=degree, allow_disconnected=True
        ),
    }
    runs = {name: make_run("dgd", graph, data) for name, graph in graphs.items()}
    works: list[Work] = []
    for name, run in runs.items():
        say(f"one DGD iteration of {clients:,} clients on a {name}")
        stack = Stack([run])
        works.append(Steady(stack, bench.problem(model, stack), starts(model, [run]), bench.seconds))
    for (name, run), times in zip(runs.items(), in_turns(works, bench.rounds), strict=True):
        seconds = statistics.median(times)
        floor = load_of(model, run, BATCH).floor(bench.machine, bench.precision)
        yield Row(
            f"sparse/{name.split()[0]}",
            f"{clients:,} svm clients, {name}, DGD",
            seconds,
            "iteration",
            floor,
            target="≤ 2× floor",
            met=seconds <= 2 * floor,
            notes=(f"no loop over {clients:,} clients: an iteration of it would take seconds to minutes",),
            more={"clients": clients, "links": graphs[name].links, "times": times},
        )


def peak_memory(bench: Bench, clients: int, stand_in: str = "mini") -> Iterator[Row]:
    """Peak memory of a DGD run in a process of its own; the time is that of its iterations."""
    say(f"peak memory of {clients:,} clients")
    found = memory.in_a_child(clients, bench.machine.threads, stand_in)
    allowed = 3.5 * found["models"] + found["data"]
    peak, models = found["peak"] / _GIB, found["models"] / _GIB
    yield Row(
        "memory/dgd",
        f"{clients:,} svm clients, torus, DGD: peak {peak:.2f} GiB, {models:.2f} of them one copy of the models",
        found["seconds"],
        "iteration",
        Load(*found["load"]).floor(bench.machine, bench.precision),
        target=f"≤ 3.5·4np + data = {allowed / _GIB:.2f} GiB",
        met=found["peak"] <= allowed,
        notes=("memory is measured in a process of its own, without a loop",),
        more={"clients": clients, "peak": found["peak"], "models": found["models"], "data": found["data"]},
    )
