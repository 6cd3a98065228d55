"""The benchmarks measure what they say: loops do DGD, floors are as computed by hand, every row has its numbers."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks import clients, compare, cpu, floors, gpu, memory, plot, worlds
from benchmarks.__main__ import main
from benchmarks.loops import CarefulLoop, ResearchLoop, VmapLoop
from benchmarks.machine import Machine, measure_machine
from benchmarks.method_loops import LOOPS
from benchmarks.rows import Bench, Report, Row
from benchmarks.rule_loop import MATRIX_LOOPS, RuleLoop
from benchmarks.table import duration, show
from benchmarks.turns import Repeated, in_turns, ratio
from tests.worlds import advance

from dspodfl.algorithms import ALGORITHMS, evaluated_models, fitted
from dspodfl.errors import DataError
from dspodfl.network import Graph, generate
from dspodfl.network.laws import FixedValues
from dspodfl.problem.data import Dataset, Federation
from dspodfl.problem.models import build

CPU = torch.device("cpu")
MACHINE = Machine("a machine", 1, 1e10, {"fp32": 1e11})
BENCH = Bench(CPU, MACHINE, rounds=2, seconds=0.01)


@pytest.fixture(scope="module")
def tiny():
    return worlds.random_images("tiny", (1, 8, 8), train=200, test=50)


# --- loops ----------------------------------------------------------------------------------------------------


def same_samples(clients, copies=4):
    """Every client holds copies of one sample, so that its gradient does not depend on what is drawn."""
    dataset = worlds.random_images("tiny", (1, 8, 8), clients, 10)
    x, y = np.repeat(dataset.x_train, copies, axis=0), np.repeat(dataset.y_train, copies)
    repeated = Dataset("copies", x, y, dataset.x_test, dataset.y_test, dataset.classes, dataset.scale)
    return Federation(repeated, tuple(np.arange(clients * copies).reshape(clients, copies)), {})


@pytest.mark.parametrize("name", ["svm", "cnn"])
@pytest.mark.parametrize(
    ("kind", "rule"),
    [(CarefulLoop, "simultaneous"), (VmapLoop, "simultaneous"), (ResearchLoop, "adapt_then_combine")],
)
def test_a_loop_computes_what_the_engine_computes(kind, rule, name):
    data = same_samples(5)
    model = build(name, data.dataset.input_shape, data.dataset.outputs, **({"channels": [3]} if name == "cnn" else {}))
    run = worlds.make_run("dgd", worlds.squarest(5), data)
    loop = kind(model, run, batch_size=4)
    for _ in range(3):
        loop.iterate()
    start = [model.initial(run.seed).expand(5, -1)]
    (looks,) = advance([run], model, iterations=3, rule=rule, initial=start, dtype=torch.float32, batch=4)
    assert not torch.equal(looks[-1].theta, looks[0].theta)
    torch.testing.assert_close(loop.vectors(), looks[-1].theta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "settings"), [("gradient_tracking", {}), ("scaffnew", {"probability": 1.0})])
def test_the_loop_of_a_method_computes_what_the_engine_computes(name, settings):
    data = same_samples(5)
    model = build("svm", data.dataset.input_shape, data.dataset.outputs)
    run, rule = worlds.make_method(name, worlds.squarest(5), data, law=FixedValues(1.0), **settings)
    loop = LOOPS[name](model, run, batch_size=4)
    for _ in range(4):
        loop.iterate()
    start = [model.initial(run.seed).expand(5, -1)]
    (looks,) = advance([run], model, iterations=4, rule=rule, initial=start, dtype=torch.float32, batch=4)
    assert not torch.equal(looks[-1].theta, looks[0].theta)
    torch.testing.assert_close(loop.vectors(), looks[-1].theta, rtol=1e-4, atol=1e-6)


def test_the_tracking_loop_computes_at_those_who_step_and_keeps_the_sum_of_trackers():
    data = same_samples(5)
    model = build("svm", data.dataset.input_shape, data.dataset.outputs)
    run, _ = worlds.make_method("gradient_tracking", worlds.squarest(5), data)
    loop, asked = LOOPS["gradient_tracking"](model, run, batch_size=4), []
    real = loop.compute
    loop.compute = lambda some: (asked.append(len(some)), real(some))
    for _ in range(20):
        loop.iterate()
    assert 0 < sum(asked) < 100
    torch.testing.assert_close(loop.mixed.sum(0), loop.gradient.sum(0), rtol=1e-4, atol=1e-5)


DRAWS = {"choco", "gradskip"}
"""Methods that draw words of their own, which their loops draw elsewhere."""


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in {*LOOPS, *DRAWS}])
def test_the_loop_of_any_method_computes_what_the_engine_computes(name):
    data = same_samples(5)
    model = build("svm", data.dataset.input_shape, data.dataset.outputs)
    graph = generate("path", 5, 0) if name in cpu.TREES else worlds.squarest(5)
    run, rule = worlds.make_method(name, graph, data)
    rule = fitted(rule, tuple(tuple(shape) for shape in model.shapes.values()))
    loop = MATRIX_LOOPS.get(name, RuleLoop)(model, run, rule, batch_size=4)
    for _ in range(12):
        loop.iterate()
    start = [model.initial(run.seed).expand(run.clients, -1)]
    (looks,) = advance([run], model, iterations=12, rule=rule, initial=start, dtype=torch.float32, batch=4)
    assert not torch.equal(looks[-1].theta, looks[0].theta)
    found = evaluated_models(rule, loop.vectors(), loop.state)
    torch.testing.assert_close(found, looks[-1].theta, rtol=1e-3, atol=1e-5)


# --- floors ---------------------------------------------------------------------------------------------------


def test_the_floor_of_linear_models_by_hand():
    # 3 clients of 5 parameters, 2 of them step on 4 samples of 9 inputs in 7 bytes, 6 directed links
    load = floors.linear_load(5, 4, 9, 7, floors.Activity(3, 2.0, 6.0))
    assert load.bytes == 2 * 4 * 3 * 5 + 2 * 4 * 7
    assert load.flops == 4 * 4 * 5 * 2 + 2 * 5 * (6 + 3) + 2 * 4 * 9 * 2
    assert load.floor(Machine("", 1, 10.0, {"fp32": 1e9})) == load.bytes / 10.0
    assert load.floor(Machine("", 1, 1e9, {"fp32": 10.0})) == load.flops / 10.0


def test_the_floor_of_networks_by_hand():
    load = floors.network_load(5, 100, 4, 7, floors.Activity(3, 2.0, 6.0))
    assert load.bytes == 4 * 5 * (2 * 2 + 2) + 4 * 5 * (3 + 2 + 3) + 2 * 4 * 7
    assert load.flops == 3 * 4 * 100 * 2 + 2 * 5 * (6 + 3)


def test_forward_flops_by_hand():
    model = build("cnn", (2, 8, 8), 3, channels=[4])
    assert floors.forward_flops(model) == 2 * (4 * 2 * 9 * 64 + 4 * 16 * 3)
    vgg = build("vgg11", (3, 32, 32), 10)
    convolutions = [(3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4)]
    macs = sum(i * o * 9 * side**2 for i, o, side in [*convolutions, (512, 512, 2), (512, 512, 2)]) + 512 * 10
    assert floors.forward_flops(vgg) == 2 * macs


def test_activity_is_what_fires_on_average(tiny):
    run = partial(cpu.paper_run, dataset=tiny, seed=0)
    links = run("dgd").rates.graph.links
    assert floors.activity(run("dgd")) == floors.Activity(10, 10.0, 2.0 * links)
    some = floors.activity(run("dspodfl"))
    k = np.zeros(1, dtype=np.int64)
    assert some.steps == pytest.approx(run("dspodfl").rates.sgd(k).sum())
    assert some.uses == pytest.approx(2 * run("dspodfl").rates.link(k).sum())
    assert 0 < floors.activity(run("dfedavg")).steps < 10


# --- worlds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 4), (5, 5)])
def test_the_torus_is_that_of_the_package(rows, columns):
    from dspodfl.network import generate

    mine = worlds.torus(rows, columns)
    theirs = generate("torus", rows * columns, 0, rows=rows, columns=columns)
    assert mine.n == theirs.n
    assert np.array_equal(mine.edges, theirs.edges.reshape(-1, 2))


def test_the_geometric_graph_links_those_within_its_radius_and_numbers_them_by_strips():
    graph = worlds.geometric(400, 6)
    radius = math.sqrt(6 / (math.pi * 400))
    apart = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    i, j = np.nonzero(np.triu(apart <= radius, 1))
    assert np.array_equal(graph.edges, np.stack([i, j], axis=1))
    assert np.array_equal(graph.edges, Graph.from_edges(400, graph.edges.tolist()).edges)
    assert (np.diff((graph.positions[:, 1] / radius).astype(int)) >= 0).all()


@pytest.mark.parametrize(("stand_in", "name"), [("mini", "fmnist-mini"), ("random", "random bytes (fmnist)")])
def test_what_is_not_on_the_machine_is_stood_in_for(stand_in, name, monkeypatch, capsys):
    real = worlds.load

    def load(wanted, **how):
        if wanted == "fmnist":
            raise DataError("not here")
        return real(wanted, **how)

    monkeypatch.setattr(worlds, "load", load)
    monkeypatch.setitem(worlds.SHAPES, "fmnist", ((1, 28, 28), 20, 10))
    assert worlds.images.__wrapped__("fmnist", stand_in).name == name
    assert "not on this machine" in capsys.readouterr().err


# --- rows -----------------------------------------------------------------------------------------------------


def finite(rows):
    rows = list(rows)
    assert rows
    for row in rows:
        numbers = [row.seconds, row.floor, row.over_floor, *(r for r in (row.careful, row.research) if r is not None)]
        assert all(math.isfinite(number) and number > 0 for number in numbers), row
        assert (row.careful is None) == (row.research is None)
        assert row.careful is not None or row.notes
        assert bool(row.target) == (row.met is not None)
    return rows


def test_rows_of_one_run(tiny):
    rows = finite(cpu.one_run(BENCH, tiny))
    assert [row.key for row in rows] == ["one/dgd", "one/careful", "one/research"]


def test_rows_of_methods(tiny):
    some = [*LOOPS, "gradskip", "relay", "fedavg", "extra"]
    rows = list(cpu.methods(BENCH, tiny, names=some))
    assert [row.key for row in rows] == [f"methods/{name}" for name in some]
    assert sorted(cpu.METHODS) == sorted(ALGORITHMS)
    least = {row.key: 8 if row.key.split("/")[1] in LOOPS else 1 for row in rows}
    assert all(row.careful > 0 and row.floor > 0 and row.met == (row.careful >= least[row.key]) for row in rows)


def test_rows_of_stacked_runs(tiny):
    assert len(finite(cpu.stacked_runs(BENCH, tiny, seeds=2, each=1))) == 3


def test_rows_of_sparse_graphs(tiny):
    finite(cpu.sparse_graph(BENCH, tiny, 80, samples=5))


def test_rows_of_memory(monkeypatch):
    monkeypatch.setattr(memory, "in_a_child", lambda clients, threads, stand_in: memory.peak(clients, stand_in))
    (row,) = finite(cpu.peak_memory(BENCH, 6, "tiny"))
    assert row.more["models"] == 4 * 6 * 170
    assert row.more["peak"] > 0


def test_rows_against_clients(tiny):
    rows = finite(clients.against_clients(BENCH, tiny, [1, 6, 30], looped=6, samples=5))
    assert [row.more["clients"] for row in rows] == [1, 6, 30]
    assert [row.careful is None for row in rows] == [False, False, True]


def test_rows_of_a_whole_study(tiny):
    rows = finite(gpu.whole_study(BENCH, tiny, seeds=1, iterations=6, every=4))
    assert [row.key for row in rows] == ["study/warm", "study/whole"]
    assert rows[0].more["runs"] == 10


def test_rows_of_networks(tiny):
    model = build("cnn", tiny.input_shape, tiny.outputs, channels=[2])
    rows = finite(gpu.networks(BENCH, model, tiny, clients=3, batch_size=2, count=5))
    assert [row.key for row in rows] == [f"networks/{name}" for name in ("fp32", "careful", "research", "vmap")]
    (row,) = finite(gpu.sporadic_networks(BENCH, model, tiny, draws=2, clients=3, batch_size=2, count=5))
    assert all(0 < steps < 3 for steps in row.more["steps"])


def test_rows_of_very_many_clients(tiny):
    rows = finite(gpu.very_many(BENCH, tiny, side=6, degree=4, samples=5))
    assert [row.key for row in rows] == ["million/torus", "million/geometric"]
    assert set(rows[0].more["setup"]) == {"shards", "graph", "rates", "problem", "first"}


def test_turns_alternate_and_ratios_are_medians():
    calls = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def turn(self):
            calls.append(self.name)
            return 1.0

    assert in_turns([Noted("a"), Noted("b")], 2) == [[1.0, 1.0], [1.0, 1.0]]
    assert calls == ["a", "b", "a", "b"]
    assert ratio([2.0, 9.0, 4.0], [1.0, 1.0, 1.0]) == 4.0
    assert Repeated(lambda: None, CPU, 1e-4).turn() > 0


def test_the_machine_has_rates():
    found = measure_machine(CPU, room=2**16, side=32)
    assert found.name
    assert found.bandwidth > 0
    assert set(found.rates) == {"fp32"}


# --- report ---------------------------------------------------------------------------------------------------


@pytest.fixture
def report():
    row = partial(Row, per="iteration", floor=1e-4)
    rows = [row(f"clients/{n}", f"{n} clients [x]", 2e-4 * n, more={"clients": n}, notes=("why",)) for n in (1, 10)]
    rows.append(row("one/dgd", "one", 1e-3, careful=3.0, research=40.0, target="≥ 15×", met=False))
    return Report("cpu", True, MACHINE, rows, {"million": "it did not fit"}, after=replace(MACHINE, bandwidth=5e9))


def test_a_report_is_read_as_it_was_written(report, tmp_path):
    file = tmp_path / "report.json"
    report.write(file)
    assert Report.read(file) == report
    plain = json.loads(file.read_text(encoding="utf-8"))
    assert {"date", "versions", "device", "threads", "machine", "rows"} <= set(plain)
    assert plain["rows"][2]["over_floor"] == pytest.approx(10)


def test_a_report_is_shown_with_targets_and_footnotes(report, capsys):
    show(report)
    shown = capsys.readouterr().out
    for part in (
        "a machine",
        "10 GB/s",
        "at the end: copying 5 GB/s",
        "measure again",
        "fp32",
        "10 clients [x]¹",
        "¹ why",
        "–",
        "40×",
        "≥ 15×",
        "not met",
        "it did not fit",
    ):
        assert part in shown


@pytest.mark.parametrize(("seconds", "text"), [(2.0, "2 s"), (0.00123, "1.23 ms"), (4e-5, "40 µs"), (3e-9, "3 ns")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_figure_is_drawn_from_reports(report, tmp_path):
    file, out = tmp_path / "report.json", tmp_path / "cost.png"
    report.write(file)
    assert plot.main([str(file), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_figures_need_rows_against_clients(report, tmp_path, capsys):
    report.rows = report.rows[2:]
    report.write(tmp_path / "report.json")
    for files in ([tmp_path / "report.json"], [tmp_path / "none.json"]):
        with pytest.raises(SystemExit) as stopped:
            plot.main([*map(str, files), "--out", str(tmp_path / "cost.png")])
        assert stopped.value.code == 2
    assert "cost against clients" in capsys.readouterr().err


# --- command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["gpu", "tpu", "cpu --only none", "cpu --json /no/such/f.json"])
def test_what_cannot_be_asked_for_exits_with_2(arguments, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_group_that_fails_leaves_the_others(report, monkeypatch, tmp_path, capsys):
    def fails():
        yield report.rows[2]
        raise ValueError("no room")

    monkeypatch.setattr("benchmarks.__main__.measure_machine", lambda device: MACHINE)
    monkeypatch.setattr(cpu, "groups", lambda bench, quick: {"one": fails, "sparse": lambda: iter(report.rows[:1])})
    file = tmp_path / "report.json"
    assert main(["cpu", "--only", "one,sparse", "--json", str(file)]) == 1
    assert [row.key for row in Report.read(file).rows] == ["one/dgd", "clients/1"]
    assert "no room" in capsys.readouterr().out


# --- two commits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ([1.0] * 15, ""),
        ([1.02] * 15, ""),
        ([1.05] * 15, "slower"),
        ([1.05] * 11 + [0.5] * 4, ""),  # the interval reaches the fourth smallest and largest of fifteen
        ([1.05] * 12 + [0.5] * 3, "slower"),
        ([1.05] * 14 + [50.0], "slower"),
        ([1.04, 1.02] * 7 + [1.04], ""),
        ([0.9] * 15, "faster"),
    ],
)
def test_a_commit_is_slower_where_the_whole_interval_is_beyond_three_percent(factors, verdict):
    old = [1.0 + n for n in range(len(factors))]  # the machine becomes slower and slower, for both alike
    found = compare.Compared.of(old, [a * factor for a, factor in zip(old, factors, strict=True)])
    assert found.verdict == verdict
    assert found.low <= found.ratio <= found.high


@pytest.mark.parametrize(("count", "outside"), [(6, 0), (8, 0), (9, 1), (15, 3), (20, 5)])
def test_intervals_of_medians_are_those_of_the_binomial_distribution(count, outside):
    assert compare._outside(count) == outside


def test_fewer_rounds_than_an_interval_takes_are_refused(capsys):
    with pytest.raises(ValueError, match="at least 6"):
        compare.Compared.of([1.0] * 5, [1.0] * 5)
    with pytest.raises(SystemExit):
        main(["compare", "HEAD", "--repetitions", "5"])
    assert "at least 6" in capsys.readouterr().err


class _Told:
    """A worker that has its turns in a list that it shares with the other."""

    def __init__(self, name, turns, heard):
        self.name, self.turns, self.heard = name, turns, heard

    def send(self, what, *_):
        self.heard.append(self.name + what)
        self.turns -= what == "go"
        if what == "again" or self.turns == 0:
            return {"rows": {"once": [float(len(self.heard))]} | ({} if what == "again" else {"often": [1.0, 2.0]})}
        return {"turn": True}


def test_commits_take_turns_and_what_is_measured_once_is_repeated():
    heard = []
    old, new = compare.in_turns([_Told("a", 2, heard), _Told("b", 2, heard)], "group", 2)
    assert heard == ["agroup", "bgroup", "ago", "bgo", "bgo", "ago", "bagain", "aagain"]
    assert len(old["once"]) == len(new["once"]) == len(old["often"]) == 2


def test_a_slower_row_ends_with_one(monkeypatch, capsys):
    class Fake:
        def __init__(self, root, *_):
            self.root = root

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    @contextmanager
    def there(commit):
        yield commit

    seconds = {"x": 1.0, "y": 1.5}
    monkeypatch.setattr(compare, "checked_out", there)
    monkeypatch.setattr(compare, "Worker", Fake)
    rows = lambda both, name, n: [{f"{name}/dgd": [seconds[one.root]] * n} for one in both]  # noqa: E731
    monkeypatch.setattr(compare, "in_turns", rows)
    where = ["--kind", "cpu", "--rows", "one"]
    assert main(["compare", "x", "y", *where]) == 1
    assert "| slower |" in capsys.readouterr().out
    assert main(["compare", "y", "x", *where]) == 0
    assert "| faster |" in capsys.readouterr().out
    assert main(["compare", "x", "x", *where]) == 0
    assert main(["compare", "x", "x", "--kind", "cpu", "--rows", "one/other"]) == 1, "nothing was measured"


def test_a_folder_takes_the_place_of_a_commit(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    with compare.checked_out(str(tmp_path)) as root:
        assert root == tmp_path.resolve()
    assert root.exists()
