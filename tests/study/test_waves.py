"""Waves: what does not fit into memory at once runs one part after the other, and nothing else changes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import TINY_TOML, CommandLine, merged, on_the_cpu, tiny
from tests.worlds import MODELS, make_run

from dspodfl import Result, Simulation, run
from dspodfl.algorithms import Simultaneous
from dspodfl.errors import OutOfMemoryError
from dspodfl.problem.models import build as build_model
from dspodfl.problem.models.model import Model
from dspodfl.study import runner
from dspodfl.study import waves as plan
from dspodfl.study.builder import build
from dspodfl.study.waves import Plan, activations, make_plan

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def planned(sizes, room, model="svm"):
    """A plan for runs of these sizes when there is room for so many of their clients."""
    made, dataset = MODELS[model]()
    runs = [make_run(seed=seed, n=n, data=dataset) for seed, n in enumerate(sizes)]
    free = make_plan(runs, made, 4, CPU, torch.float32, memory=10**15)
    memory = int((free.fixed + (room + 0.5) * free.per_client) / plan._SHARE)
    return make_plan(runs, made, 4, CPU, torch.float32, memory=memory)


def sizes_of(found):
    return [len(wave) for wave in found.left]


# --- the plan -------------------------------------------------------------------------------------------------


def test_what_fits_runs_at_once():
    assert planned([5, 5, 5], 15).left == ([0, 1, 2],)


def test_what_does_not_fit_is_cut_into_as_few_even_waves_as_fit():
    assert sizes_of(planned([5] * 6, 29)) == [3, 3]
    assert sizes_of(planned([5] * 6, 14)) == [2, 2, 2]
    assert sizes_of(planned([5] * 7, 20)) == [4, 3] or sizes_of(planned([5] * 7, 20)) == [3, 4]


def test_links_take_room_where_there_are_many(monkeypatch):
    monkeypatch.setattr("dspodfl.study.waves._FEW_LINKS", 0)
    assert planned([5, 5, 5], 15).left != ([0, 1, 2],)
    monkeypatch.setattr("dspodfl.study.waves._LINK_BYTES", 0)
    assert planned([5, 5, 5], 15).left == ([0, 1, 2],)


def test_every_run_is_in_one_wave_even_where_no_run_fits():
    found = planned([5, 1, 9, 3], 2)
    assert sorted(r for wave in found.left for r in wave) == [0, 1, 2, 3]
    assert sizes_of(found) == [1, 1, 1, 1]


def test_no_wave_is_larger_than_the_room():
    sizes = [1, 9, 2, 8, 3, 7, 4, 6, 5]
    found = planned(sizes, 12)
    assert all(sum(sizes[r] for r in wave) <= 12 or len(wave) == 1 for wave in found.left)


def test_the_algorithms_of_a_seed_stay_together():
    _, made = build(tiny(algorithms=["dspodfl", "dgd", "rg"], seeds=4))
    free = make_plan(made.runs, made.model, 4, CPU, torch.float32, memory=10**15)
    memory = int((free.fixed + 6.5 * 4 * free.per_client) / plan._SHARE)
    found = make_plan(made.runs, made.model, 4, CPU, torch.float32, memory=memory)
    seeds = [sorted({made.runs[r].seed for r in wave}) for wave in found.left]
    assert seeds == [[0, 1], [2, 3]]


def test_a_client_takes_three_and_a_half_times_its_parameters_and_what_its_network_keeps():
    for name in ("svm", "mlp", "cnn"):
        model, dataset = MODELS[name]()
        found = make_plan([make_run(data=dataset)], model, 4, CPU, torch.float32, memory=10**15)
        assert found.per_client == int(3.5 * 4 * model.parameters) + 4 * activations(model, 4)


def bytes_of(algorithm):
    """The bytes of a client and of the links of a run, as they are planned for a study of one algorithm."""
    _, made = build(tiny(algorithms=[algorithm]))
    found = make_plan(made.runs, made.model, 4, CPU, torch.float32, 10**15, 1, made.groups, made.rules)
    return found.per_client, made


def test_the_state_of_a_rule_and_its_memory_of_links_take_room():
    plain, made = bytes_of("dspodfl")
    array = 4 * made.model.parameters
    assert bytes_of("gradient_tracking")[0] - plain == 2 * array  # trackers and held gradients
    assert bytes_of({"name": "dspodfl", "local": {"momentum": 0.9}})[0] - plain == array
    ring = {"name": "choco", "settings": {"compressor": "sign"}}
    found, made = bytes_of(ring)
    (run,), (rule,) = made.runs, made.rules
    kept = plan.state_numbers(rule, run, made.model.parameters)
    ends = 2 * run.topology.graph.links
    assert kept >= ends * made.model.parameters  # a copy of the neighbour's at each end of a link
    assert found - plain == 4 * kept // run.clients


def test_runs_with_a_state_are_cut_into_more_waves():
    _, made = build(tiny(algorithms=["gradient_tracking"], seeds=6))
    given = (made.runs, made.model, 4, CPU, torch.float32)
    free = make_plan(*given, 10**15)
    memory = int((free.fixed + 6 * 4.2 * free.per_client) / plan._SHARE)
    assert sizes_of(make_plan(*given, memory)) == [6]
    assert sizes_of(make_plan(*given, memory, 1, made.groups, made.rules)) == [3, 3]


def test_a_rule_that_does_not_know_the_meta_device_is_planned_without_its_state():
    class Odd(Simultaneous):
        def init(self, theta, links):
            return theta.numpy()

        def step(self, theta, state, at):
            return theta, state

    _, made = build(tiny())
    assert plan.state_numbers(Odd(), made.runs[0], 10) == 0


def test_activations_are_what_the_layers_give_and_their_slopes():
    assert activations(build_model("svm", (6,), 3), 7) == 0
    assert activations(build_model("mlp", (6,), 3, hidden=[5]), 7) == 2 * 7 * (6 + 5 + 5 + 3)  # flat, linear, relu, out


def test_a_module_that_does_not_know_the_meta_device_is_planned_without_its_activations():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x):
            if x.device.type == "meta":
                raise NotImplementedError
            return self.layer(x)

    assert activations(Model("odd", Odd(), "cross_entropy", (6,), 3), 4) == 0


def test_halving_cuts_what_is_left_and_keeps_what_is_done():
    found = Plan(([9],), ([0, 1, 2], [3], [4, 5]), 10, 5, 100).halved()
    assert found.done == ([9],)
    assert sorted(r for wave in found.left for r in wave) == [0, 1, 2, 3, 4, 5]
    assert max(map(len, found.left)) == 2
    assert found.halvings == 1


# --- studies in waves -----------------------------------------------------------------------------------------


def in_waves(monkeypatch, waves):
    """Make plans of so many waves."""
    real = plan.make_plan

    def cut(runs, *more, **others):
        found = real(runs, *more, **others)
        order = [r for wave in found.left for r in wave]
        parts = [part.tolist() for part in np.array_split(order, waves)]
        return Plan((), tuple(parts), found.per_client, found.fixed, found.memory)

    monkeypatch.setattr(runner, "make_plan", cut)


CONFIG = {"algorithms": ["dspodfl", "dgd", "dfedavg"], "seeds": 3, "eval": {"every": 2, "at_delay": [3.0]}}


@pytest.mark.parametrize("model", ["svm", "mlp"])
@pytest.mark.parametrize("waves", [2, 4, 9])
def test_waves_change_no_event_and_no_parameter(waves, model, monkeypatch):
    config = tiny(**merged(CONFIG, {"model": {"name": model}}))
    whole = run(config, record_events=True)
    in_waves(monkeypatch, waves)
    parts = run(config, record_events=True)
    exact = [c for c in whole.metrics if c.startswith("delay") or c in ("iteration", "sgd_steps", "link_uses", "seed")]
    assert parts.metrics[exact].equals(whole.metrics[exact])
    pd.testing.assert_frame_equal(parts.metrics, whole.metrics, rtol=1e-6)
    pd.testing.assert_frame_equal(parts.clients, whole.clients)
    for key, (events, _) in whole.events.items():
        assert np.array_equal(events.v, parts.events[key][0].v)
        assert np.array_equal(events.v_hat, parts.events[key][0].v_hat)
    for key in whole.stacked:
        for name, values in whole.stacked[key].items():
            assert torch.allclose(values, parts.stacked[key][name], rtol=0, atol=1e-6)
    assert [sum(parts.summary["study"]["plan"]["waves"])] == [9]
    assert len(parts.summary["study"]["plan"]["waves"]) == waves
    assert whole.summary["study"]["plan"]["waves"] == [9]


def test_progress_counts_the_iterations_of_all_waves(monkeypatch):
    in_waves(monkeypatch, 3)
    heard, plans = [], []
    simulation = Simulation(tiny(**CONFIG), tick=heard.append, on_plan=plans.append)
    for _ in simulation:
        pass
    assert heard == list(range(1, 3 * 4 + 1))
    assert [len(found.left) for found in plans] == [3]


def test_a_study_left_in_its_second_wave_has_what_was_measured(monkeypatch):
    in_waves(monkeypatch, 3)
    simulation = Simulation(tiny(**CONFIG))
    for update in simulation:
        if update.iteration == 2 and len(simulation.progress.known.finished) == 3:
            break
    result = simulation.result()
    assert result.summary["study"]["complete"] is False
    assert result.summary["study"]["iterations_done"] == 0
    assert len(result.metrics[["algorithm", "seed"]].drop_duplicates()) == 6
    assert len(result.stacked) == 6


# --- out of memory --------------------------------------------------------------------------------------------


def failing(monkeypatch, most, at=2, error=None):
    """Make waves of more than ``most`` runs run out of memory after their evaluation at an iteration."""
    real = runner.run_wave

    def wave(context, runs, *more):
        for found in real(context, runs, *more):
            if found.iteration >= at and len(runs) > most:
                raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
            yield found

    monkeypatch.setattr(runner, "run_wave", wave)


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize(
    "error", [None, MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1")]
)
def test_a_wave_that_runs_out_of_memory_is_run_again_in_halves_and_no_row_is_lost(at, error, monkeypatch):
    config = tiny(**CONFIG)
    whole = run(config, record_events=True)
    failing(monkeypatch, 2, at, error)
    plans = []
    simulation = Simulation(config, record_events=True, on_plan=plans.append)
    for _ in simulation:
        pass
    result = simulation.result()
    assert not result.metrics.duplicated(["algorithm", "seed", "iteration"]).any()
    pd.testing.assert_frame_equal(result.metrics, whole.metrics, rtol=1e-6)
    for key, (events, _) in whole.events.items():
        assert np.array_equal(events.v, result.events[key][0].v)
    assert result.summary["study"]["plan"]["halved_for_memory"] == len(plans) - 1 == 3
    assert max(result.summary["study"]["plan"]["waves"]) <= 2
    assert result.summary["study"]["complete"]


def test_a_run_that_does_not_fit_alone_is_an_error_that_says_what_it_needs(monkeypatch):
    failing(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError, match=r"one run of 4 clients needs about .* GiB, and .* GiB were free"):
        run(tiny(**CONFIG))


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    failing(monkeypatch, 0, error=RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        run(tiny(**CONFIG))


@pytest.mark.parametrize("at", [0, 4])
def test_the_command_line_keeps_what_was_measured_before_memory_ran_out(at, tmp_path, monkeypatch, capsys):
    failing(monkeypatch, 0, at=at)
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(TINY_TOML)
    answer = CommandLine(monkeypatch, capsys, tmp_path)("run", "study.toml", "--seeds", 2, "--out", "out")
    assert answer.code == 2
    assert "out of memory" in answer.err and "GiB" in answer.err and "Traceback" not in answer.err
    if at == 0:
        assert not (tmp_path / "out").exists()
        return
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["study"]["complete"] is False
    assert pd.read_parquet(tmp_path / "out" / "metrics.parquet")["iteration"].max() == 2


def test_the_command_line_says_that_it_goes_on_with_smaller_waves(tmp_path, monkeypatch, capsys):
    failing(monkeypatch, 1)
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    (tmp_path / "study.toml").write_text(TINY_TOML)
    answer = CommandLine(monkeypatch, capsys, tmp_path)("run", "study.toml", "--out", "out")
    assert answer.code == 0
    assert "continuing with smaller waves (runs: 1, 1)" in answer.err
