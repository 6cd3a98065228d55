"""Methods whose models decide which links fire, in a study: beside others, by budgets, on ranks, resumed, recorded."""

import numpy as np
import pandas as pd
import pytest
import torch
from tests.edge import CommandLine, on_the_cpu, tiny
from tests.teams import together

from dspodfl import InputError, Result, run
from dspodfl.algorithms import Algorithm, Replay
from dspodfl.network.budget import COSTS
from dspodfl.study import Simulation, build

EF_HC = {"name": "ef_hc", "settings": {"r": 0.7}}
MIXED = ["dspodfl", EF_HC, "gradient_tracking", {"name": "ef_hc", "label": "rare", "settings": {"r": 4.0}}]
FAST = {
    "sgd": {"law": "list", "values": [0.4, 0.9, 0.6, 1.0, 0.7, 0.5]},
    "link": {"law": "list", "values": [0.3, 0.9, 0.5, 1.0, 0.2, 0.7]},
}
STUDY = {"seeds": 2, "rates": FAST, "clients": {"count": 6}, "data": {"samples": 90}}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    return CommandLine(monkeypatch, capsys, tmp_path)


def study(**changes):
    return tiny(**STUDY | {"algorithms": MIXED, **changes})


def without(metrics, *columns):
    return metrics.reset_index(drop=True).drop(columns=list(columns))


def test_a_study_of_all_is_its_studies_apart_to_the_last_bit():
    changes = {"train": {"iterations": 40}, "eval": {"every": 7, "at_delay": [30.0, 200.0]}}
    whole = run(study(**changes)).metrics
    for given in MIXED:
        alone = run(study(algorithms=[given], **changes)).metrics
        name = alone["algorithm"][0]
        assert whole[whole["algorithm"] == name].reset_index(drop=True).equals(alone.reset_index(drop=True))
    uses = whole.groupby("algorithm")["link_uses"].max()
    assert 0 < uses["rare"] < uses["ef_hc"] < 40 * 6  # of the links of a ring of 6


def replayed(found, name, seed, **changes):
    """The rows of a recorded run that is played back with the paper's update."""
    played = Algorithm("replayed", schedule=Replay(*found.events[name, seed]))
    return run(tiny(**STUDY | {"seeds": 1, "seed": seed, **changes}), algorithms=[played]).metrics


@pytest.mark.parametrize("kind", ["delay", "bytes", "normalized_delay"])
def test_budgets_end_it_where_they_would_have_ended_its_events_had_they_been_known(kind):
    """The same events, tallied ahead by another rule, are evaluated at the same iterations with the same counters."""
    value = {"delay": 130.0, "bytes": 8000.0, "normalized_delay": 12.0}[kind]
    changes = {"train": {"iterations": None, "until": {kind: value}}, "eval": {"every": None, "points": 6}}
    changes["eval"]["at_delay"] = [20.0, 41.1]
    found = run(study(**changes), record_events=True)
    column = COSTS[kind].column
    counted = ["iteration", "sgd_steps", "link_uses", "bytes", "delay_total", "delay_transmission_normalized"]
    for (name, seed), rows in found.metrics.groupby(["algorithm", "seed"]):
        assert rows[column].iloc[-1] >= value > rows[column].iloc[-2]
        events, _ = found.events[name, seed]
        assert len(events.v) == rows["iteration"].iloc[-1]
        assert events.v_hat.sum() == rows["link_uses"].iloc[-1]
        if name in ("ef_hc", "rare"):
            again = replayed(found, name, seed, **changes)
            assert again[counted].equals(rows[counted].reset_index(drop=True))
            assert np.allclose(again["loss"], rows["loss"], rtol=1e-4)


def test_recorded_events_played_back_give_the_same_models():
    changes = {"train": {"iterations": 30, "precision": "fp64"}, "model": {"name": "mlp", "hidden": [4]}}
    found = run(study(**changes), record_events=True)
    again = replayed(found, "ef_hc", 1, **changes)
    rows = found.metrics.query("algorithm == 'ef_hc' and seed == 1")
    pd.testing.assert_frame_equal(without(again, "algorithm"), without(rows, "algorithm"), rtol=1e-10)


@pytest.mark.parametrize("split", ["runs", "clients"])
def test_ranks_come_to_what_one_process_comes_to(split):
    changes = {"train": {"iterations": None, "until": {"delay": 120.0}, "precision": "fp64"}}
    config = study(scale={"split": split}, eval={"every": 9, "at_delay": [40.0]}, **changes)
    alone = run(config, record_events=True)

    def work(team):
        simulation = Simulation(config, device="cpu", team=team, record_events=True)
        for _ in simulation:
            pass
        return simulation.result()

    found = together(2, work)[0]
    exact = ["algorithm", "seed", "iteration", "sgd_steps", "link_uses", "bytes", "delay_total"]
    assert found.metrics[exact].equals(alone.metrics[exact])
    assert np.allclose(found.metrics["loss"], alone.metrics["loss"], atol=1e-9)
    for key, (events, _) in alone.events.items():
        assert np.array_equal(events.v_hat, found.events[key][0].v_hat), key
        assert np.array_equal(events.v, found.events[key][0].v), key
    for key, tensors in alone.stacked.items():
        assert all(torch.allclose(values, found.stacked[key][name], atol=1e-9) for name, values in tensors.items())


@pytest.mark.parametrize("stop", [6, 18])
def test_a_study_that_is_stopped_and_resumed_is_the_one_in_one_go(line, stop):
    config = study(train={"iterations": None, "until": {"delay": 100.0}}, eval={"every": 3, "at_delay": [33.0]})
    whole = run(config, record_events=True)
    seen = []

    def late(update):
        seen.extend(row.algorithm for row in update.rows if row.iteration >= stop)
        return "rare" in seen

    run(config, out=line.folder / "out", callbacks=[late], record_events=True)
    assert line("run", "--resume", "out", "--quiet").code == 0
    found = Result.load(line.folder / "out")
    pd.testing.assert_frame_equal(found.metrics, whole.metrics, check_exact=True)
    for key, (events, _) in whole.events.items():
        assert np.array_equal(events.v_hat, found.events[key][0].v_hat), key
        assert np.array_equal(events.v, found.events[key][0].v), key


def test_events_that_were_not_recorded_cannot_be_had_later(line):
    config = study(train={"iterations": 20})
    run(config, out=line.folder / "out", callbacks=[lambda update: update.rows[0].algorithm == "rare"])
    with pytest.raises(InputError, match=r"record_events = True: must be left out: the events of ef_hc depend"):
        run(config, resume=line.folder / "out", record_events=True)
    assert len(run(config, resume=line.folder / "out").metrics) > 0


def test_a_cap_leaves_room_for_links_that_hardly_ever_fire():
    _, made = build(study(train={"iterations": None, "until": {"delay": 120.0}}))
    dgd, gated = (next(r for r in made.runs if r.algorithm == name) for name in ("gradient_tracking", "rare"))
    assert gated.gated and not dgd.gated and gated.cap > 3 * gated.need
    _, made = build(study(train={"iterations": None, "until": {"bytes": 30000.0}}))
    assert next(r for r in made.runs if r.algorithm == "rare").cap == 10**6


def test_graphs_attacks_and_momentum_go_with_it():
    moving = {"kind": "ring", "dynamics": {"kind": "bernoulli", "up": 0.5}}
    with_momentum = {**EF_HC, "label": "m", "local": {"momentum": 0.9, "proximal": 0.1}}
    sporadic = {"schedule": "dspodfl", "rule": "ef_hc", "label": "s", "settings": {"r": 0.5}}
    flipped = {"attack": {"clients": [2], "kind": "sign_flip"}}
    for changes in ({"graph": moving, "algorithms": [EF_HC, with_momentum, sporadic]}, flipped):
        found = run(study(**{"algorithms": [EF_HC, sporadic], "train": {"iterations": 30}} | changes))
        last = found.metrics.groupby("algorithm")["link_uses"].max()
        assert np.isfinite(found.metrics["loss"]).all() and (last > 0).all() and last["s"] < last["ef_hc"]
    with pytest.raises(InputError, match="directed"):
        build(study(algorithms=[EF_HC], graph={"kind": "ring", "directed": True}))
