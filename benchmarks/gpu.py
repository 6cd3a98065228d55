"""On a GPU: a whole study, networks, sporadic networks, a million clients. Float32 parameters, TF32 products.

Every function takes the device and the sizes, so that all of them can be tried small on a CPU.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch

from benchmarks.clients import against_clients
from benchmarks.cpu import DGD_ONLY, Group, one_run
from benchmarks.floors import NOTHING, activity, load_of, looking
from benchmarks.loops import CarefulLoop, ResearchLoop, VmapLoop
from benchmarks.machine import release, wait
from benchmarks.rows import BATCH, Bench, Row, starts
from benchmarks.table import duration
from benchmarks.turns import Repeated, Steady, Work, in_turns, ratio, say
from benchmarks.worlds import SAMPLES, geometric, images, make_run, shared, torus
from dspodfl import Config
from dspodfl.algorithms import PAPER
from dspodfl.engine import Stack
from dspodfl.engine.device import products
from dspodfl.network import Graph, generate
from dspodfl.problem.data import Dataset, Federation, partitions
from dspodfl.problem.models import Model
from dspodfl.problem.models import build as build_model
from dspodfl.study import UserInputs, build
from dspodfl.study.runner import measure
from dspodfl.study.study import Study, joined

_GIB = 2**30
_BLOCK = 400
"""Iterations of networks drawn in one batch, so that a turn, which is whole blocks, takes a part of a second."""
_BEFORE = 3
"""Turns of networks that do not count: by then all but the rarest numbers of active clients have occurred twice."""
NAMES = ("study", "one", "networks", "sporadic", "million", "clients")


def groups(bench: Bench, quick: bool) -> dict[str, Group]:
    """What can be measured here, by name."""
    side = 300 if quick else 1_000
    counts = tuple(10**n for n in range(1, 6 if quick else 7))

    def colour() -> tuple[Model, Dataset]:
        dataset = images("cifar10")
        return build_model("vgg11", dataset.input_shape, dataset.outputs), dataset

    return {
        "study": lambda: whole_study(bench, images("fmnist"), 4 if quick else 20, 3_000 if quick else 15_000, 500),
        "one": lambda: one_run(bench, images("fmnist")),
        "networks": lambda: networks(bench, *colour()),
        "sporadic": lambda: sporadic_networks(bench, *colour(), draws=5 if quick else 20),
        "million": lambda: very_many(bench, images("fmnist"), side),
        "clients": lambda: against_clients(bench, images("fmnist"), counts, looped=100),
    }


# --- a whole study --------------------------------------------------------------------------------------------


def joined_study(dataset: Dataset, seeds: int, iterations: int, every: int) -> Study:
    """All algorithms on all seeds, with shards of random samples and with shards of one class."""
    studies = []
    for partition in ({"kind": "iid"}, {"kind": "labels", "per_client": 1}):
        config = Config(
            algorithms=list(PAPER),
            seeds=seeds,
            data={"name": "fmnist-mini", "partition": partition},  # its name is replaced by the data given
            train={"iterations": iterations, "batch_size": BATCH},
            eval={"every": every},
        )
        studies.append(build(config, UserInputs(data=dataset))[1])
    return joined(studies)


def whole_study(bench: Bench, dataset: Dataset, seeds: int, iterations: int, every: int) -> Iterator[Row]:
    """Seconds of a study: from the configuration, with compilation; and of `measure` alone, when all is compiled.

    The floor is that of all iterations of all runs and of the scores at every evaluation: of each client's model and
    of the average one, on the whole test set.
    """

    def seconds(study: Study) -> float:
        start = time.perf_counter()
        evaluations = sum(len(found.rows) for found in measure(study, bench.device))
        wait(bench.device)
        assert evaluations == len(study.runs) * (1 + -(-iterations // every))
        return time.perf_counter() - start

    say(f"a study of {2 * seeds * len(PAPER)} runs and {iterations:,} iterations, from its configuration")
    start = time.perf_counter()
    study = joined_study(dataset, seeds, iterations, every)
    built = time.perf_counter() - start
    whole = built + seconds(study)
    say("the same, everything compiled")
    warm = seconds(study)
    load = sum((load_of(study.model, run, BATCH) for run in study.runs), NOTHING) * iterations
    evaluations = 1 + -(-iterations // every)
    models = sum(run.clients + 1 for run in study.runs)
    load += looking(study.model, models, len(dataset.x_test)) * evaluations
    floor = load.floor(bench.machine, bench.precision)
    runs = len(study.runs)
    note = (
        f"{iterations:,} iterations, evaluated {evaluations} times on {len(dataset.x_test):,} samples; "
        f"building it took {built:.1f} s; a loop would take hours"
    )
    full = runs * iterations >= 200 * 15_000
    row = partial(Row, per="study", floor=floor, notes=(note,), more={"runs": runs, "built": built})
    aim = partial(row, target="≤ 5 s") if full else row
    name = f"{runs} runs × {study.runs[0].clients} svm clients, {dataset.name}"
    yield aim("study/warm", f"{name}; compiled before", warm, met=warm <= 5 if full else None)
    yield row("study/whole", "  with building it and compiling kernels", whole)


# --- networks -------------------------------------------------------------------------------------------------


def _small_graph(clients: int) -> Graph:
    return generate("geometric", clients, 0, radius=0.4) if clients > 4 else generate("complete", clients, 0)


def _dealt(dataset: Dataset, clients: int) -> Federation:
    return Federation(dataset, partitions.iid(dataset.y_train, clients, 0).shards, {})


def _tuned(iterate: Callable[[], None]) -> Callable[[], None]:
    """With cuDNN's own search for the fastest convolution, as one sets it for inputs of one shape."""

    def tuned() -> None:
        before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
        try:
            iterate()
        finally:
            torch.backends.cudnn.benchmark = before

    return tuned


def networks(
    bench: Bench, model: Model, dataset: Dataset, clients: int = 10, batch_size: int = BATCH, count: int | None = None
) -> Iterator[Row]:
    """One DGD iteration of networks: the engine in TF32 and bfloat16, both loops, and vmap."""
    run = make_run("dgd", _small_graph(clients), _dealt(dataset, clients))
    stack, start = Stack([run]), starts(model, [run])
    cuda = bench.device.type == "cuda"
    with products(bench.precision):
        engines = {}
        for precision in (bench.precision, "bf16") if cuda else (bench.precision,):
            say(f"{model.name}: one DGD iteration of {clients} clients in {precision}")
            problem = bench.problem(model, stack, batch_size, precision)
            engines[precision] = Steady(stack, problem, start, bench.seconds, count, longest=_BLOCK)
        say(f"{model.name}: the loops")
        kinds = {"careful": CarefulLoop, "research": ResearchLoop, "vmap": VmapLoop}
        loops = {name: kind(model, run, batch_size, bench.device) for name, kind in kinds.items()}
        plain = [Repeated(_tuned(loop.iterate), bench.device, bench.seconds) for loop in loops.values()]
        works: list[Work] = [*engines.values(), *plain]
        times = dict(zip([*engines, *loops], in_turns(works, bench.rounds), strict=True))
    load = load_of(model, run, batch_size)
    names = {
        "careful": "  the careful loop",
        "research": "  the research loop",
        "vmap": "  one vmap over the clients",
    }
    for key, ours in times.items():
        seconds = statistics.median(ours)
        engine = engines.get(key)
        aimed = key == bench.precision
        yield Row(
            f"networks/{key}",
            names.get(key, f"{model.name}, {dataset.name}, {clients} clients, batch {batch_size}, DGD, {key}"),
            seconds,
            "iteration",
            load.floor(bench.machine, key if key in bench.machine.rates else bench.precision),
            ratio(times["careful"], ours),
            ratio(times["research"], ours),
            "≤ 2.0 ms" if aimed else "",
            seconds <= 2e-3 if aimed else None,
            ("it diverged while it was measured",) if engine is not None and engine.diverged else (),
            {"times": ours, "iterations": engine.count if engine is not None else None},
        )


def sporadic_networks(
    bench: Bench,
    model: Model,
    dataset: Dataset,
    draws: int,
    clients: int = 10,
    batch_size: int = BATCH,
    beta: float = 0.8,
    count: int | None = None,
) -> Iterator[Row]:
    """DSpodFL in the same setting, against DGD: the mean over draws of the rates, each in turn with DGD."""
    graph, data = _small_graph(clients), _dealt(dataset, clients)
    dgd = Stack([make_run("dgd", graph, data)])
    start = starts(model, dgd.runs)
    problem = bench.problem(model, dgd, batch_size)
    ours, base, shares, steps, load = [], [], [], [], NOTHING
    diverged = False
    with products(bench.precision):
        every = Steady(dgd, problem, start, bench.seconds, count, longest=_BLOCK)
        for draw in range(draws):
            say(f"{model.name}: one DSpodFL iteration, draw {draw + 1} of {draws}")
            run = make_run("dspodfl", graph, data, rates_seed=draw, beta=beta)
            some = Steady(Stack([run]), problem, start, bench.seconds, every.count, longest=_BLOCK, before=_BEFORE)
            found, full = (statistics.median(times) for times in in_turns([some, every], bench.rounds))
            ours.append(found)
            base.append(full)
            shares.append(found / full)
            load += load_of(model, run, batch_size) * (1 / draws)
            steps.append(activity(run).steps)
            diverged |= some.diverged
    share = statistics.fmean(shares)
    each, fixed = statistics.linear_regression(steps, ours) if draws > 1 else (0.0, ours[0])
    line = f"a line through the draws: {duration(fixed)}, and {duration(each)} for each client that takes a step"
    yield Row(
        "sporadic/dspodfl",
        f"{model.name}, {clients} clients, DSpodFL, Beta({beta}, {beta}), mean of {draws} draws; {share:.2f}× DGD",
        statistics.fmean(ours),
        "iteration",
        load.floor(bench.machine, bench.precision),
        target="≤ 0.6× DGD",
        met=share <= 0.6,
        notes=(DGD_ONLY, line, *(("it diverged while it was measured",) if diverged else ())),
        more={"share": share, "dgd": statistics.fmean(base), "times": ours, "steps": steps},
    )


# --- very many clients ----------------------------------------------------------------------------------------


def very_many(bench: Bench, dataset: Dataset, side: int, degree: float = 10, samples: int = SAMPLES) -> Iterator[Row]:
    """One DSpodFL run of side² clients, on a torus and on a geometric graph; set-up is timed apart."""
    model = build_model("svm", dataset.input_shape, dataset.outputs)
    clients = side * side
    say(f"shards of {clients:,} clients")
    begun = time.perf_counter()
    data = shared(dataset, clients, samples)
    dealing = time.perf_counter() - begun
    kinds: dict[str, Callable[[], Graph]] = {
        f"{side} × {side} torus": lambda: torus(side, side),
        f"geometric graph of mean degree {degree:g}": lambda: geometric(clients, degree),
    }
    for name, make in kinds.items():
        say(f"{clients:,} clients on a {name}")
        yield _many(bench, model, data, name, make, dealing)
        release(bench.device)


def _many(bench: Bench, model: Model, data: Federation, name: str, make: Callable[[], Graph], dealing: float) -> Row:
    release(bench.device)
    cuda = bench.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(bench.device)
    marks = [time.perf_counter()]
    graph = make()
    marks.append(time.perf_counter())
    run = make_run("dspodfl", graph, data)
    who = activity(run)
    marks.append(time.perf_counter())
    stack = Stack([run])
    _ = stack.neighbours
    problem = bench.problem(model, stack)
    wait(bench.device)
    marks.append(time.perf_counter())
    engine = Steady(stack, problem, starts(model, [run]), bench.seconds, count=20)
    marks.append(time.perf_counter())
    (times,) = in_turns([engine], max(3, bench.rounds // 3))
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated(bench.device) if cuda else 0
    steps = [after - before for before, after in pairwise(marks)]
    parts = dict(zip(("graph", "rates", "problem", "first"), steps, strict=True))
    lattice = "torus" in name
    note = (
        f"set up before: shards {dealing:.1f} s, graph {parts['graph']:.1f} s, rates {parts['rates']:.1f} s, "
        f"to the device {parts['problem']:.1f} s, first 20 iterations {parts['first']:.1f} s"
    )
    target, met = "≤ 120 GiB", peak <= 120 * _GIB
    if lattice:
        target, met = f"≥ 10 it/s, {target}", met and seconds <= 0.1
    full = run.clients >= 1_000_000
    return Row(
        f"million/{'torus' if lattice else 'geometric'}",
        f"{run.clients:,} svm clients, {name}, DSpodFL: {1 / seconds:.1f} it/s, peak {peak / _GIB:.1f} GiB",
        seconds,
        "iteration",
        load_of(model, run, BATCH).floor(bench.machine, bench.precision),
        target=target if full else "",
        met=met if full else None,
        notes=(note, "a loop needs a module and an optimizer for each client"),
        more={
            "clients": run.clients,
            "links": graph.links,
            "peak": peak,
            "steps": who.steps,
            "times": times,
            "setup": parts | {"shards": dealing},
        },
    )


def fresh_kernels() -> tempfile.TemporaryDirectory[str]:
    """An empty place for compiled kernels, so that compiling them is measured wherever this runs."""
    folder = tempfile.TemporaryDirectory(prefix="kernels-")
    os.environ["TRITON_CACHE_DIR"] = folder.name
    return folder
