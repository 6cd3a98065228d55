"""Cost against the number of clients: one DGD iteration of linear models on a torus."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.floors import load_of
from benchmarks.loops import CarefulLoop, ResearchLoop
from benchmarks.machine import release
from benchmarks.rows import BATCH, Bench, Row, starts
from benchmarks.turns import Repeated, Steady, Work, in_turns, ratio, say
from benchmarks.worlds import SAMPLES, make_run, shared, squarest
from dspodfl.engine import Stack
from dspodfl.problem.data import Dataset, Federation
from dspodfl.problem.models import build

KEY = "clients"
_MANY = 500_000


def against_clients(
    bench: Bench, dataset: Dataset, counts: Sequence[int], looped: int, samples: int = SAMPLES
) -> Iterator[Row]:
    """A row for each number of clients; loops up to ``looped`` of them."""
    note = f"no loop over more than {looped:,} clients: its iterations take seconds to minutes"
    most = shared(dataset, max(counts), samples)
    model = build("svm", dataset.input_shape, dataset.outputs)
    for clients in counts:
        say(f"one DGD iteration of {clients:,} clients")
        data = Federation(dataset, most.shards[:clients], {})
        graph = squarest(clients)
        stack = Stack([make_run("dgd", graph, data)])
        problem = bench.problem(model, stack)
        # A million models fill the device: measuring how long a turn should be would need room for them twice.
        count = 20 if clients >= _MANY else None
        works: list[Work] = [Steady(stack, problem, starts(model, stack.runs), bench.seconds, count)]
        if clients <= looped:
            for kind in (CarefulLoop, ResearchLoop):
                loop = kind(model, stack.runs[0], BATCH, bench.device)
                works.append(Repeated(loop.iterate, bench.device, bench.seconds))
        ours, *theirs = in_turns(works, bench.rounds)
        careful, research = (ratio(times, ours) for times in theirs) if theirs else (None, None)
        seconds = statistics.median(ours)
        cost = 1e9 * seconds / clients
        yield Row(
            f"{KEY}/{clients}",
            f"{clients:,} svm {'client' if clients == 1 else 'clients'}, torus, DGD ({cost:,.0f} ns a client)",
            seconds,
            "iteration",
            load_of(model, stack.runs[0], BATCH).floor(bench.machine, bench.precision),
            careful,
            research,
            notes=() if theirs else (note,),
            more={"clients": clients, "links": graph.links, "times": ours},
        )
        del works, stack, problem
        release(bench.device)
