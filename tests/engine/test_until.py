"""Runs that rest once their delay has reached a bound."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.worlds import ALGORITHMS, MODELS, advance, classified, erdos_renyi, make_run, scattered

from dspodfl import Config, run, study
from dspodfl.engine import Stack
from dspodfl.engine.reference import plain_loop
from dspodfl.errors import ConfigError
from dspodfl.problem import Problem
from dspodfl.topology import Flicker


def config(until=None, **more):
    train = {"iterations": 60, "learning_rate": {"kind": "constant", "value": 0.05}}
    if until is not None:
        train["until_delay"] = until
    return Config(
        seeds=2,
        data={"name": "synthetic", "partition": {"kind": "iid"}},
        train=train,
        eval={"every": 20, "at_delay": [10.0, 30.0]},
        **more,
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("length", [1, 7, 40])
def test_nothing_fires_after_the_iteration_that_reaches_the_bound(algorithm, length):
    data = classified(samples=300)
    graph = erdos_renyi(6, 1)
    free = [make_run(algorithm, seed, data=data, graph=graph) for seed in range(3)]
    free.append(make_run(algorithm, 9, data=data, topology=Flicker(graph, 7, 0.5)))
    bounds = [15.0, np.inf, 40.0, 22.0]
    bound = [replace(one, until=until) for one, until in zip(free, bounds, strict=True)]
    (whole,) = Stack(free).blocks(40, 40)
    blocks = list(Stack(bound).blocks(40, length))
    v, v_hat, total = (
        torch.cat([pick(b) for b in blocks]) for pick in (lambda b: b.v, lambda b: b.v_hat, lambda b: b.tally.total)
    )
    for r, until in enumerate(bounds):
        rows, links = Stack(free).rows[r], Stack(free).links[r]
        end = int((whole.tally.total[:, r] < until).sum()) + 1  # iterations until the bound is reached
        assert torch.equal(v[:end, rows], whole.v[:end, rows])
        assert torch.equal(v_hat[:end, links], whole.v_hat[:end, links])
        assert not v[end:, rows].any()
        assert not v_hat[end:, links].any()
        assert torch.equal(total[:end, r], whole.tally.total[:end, r])
        assert (total[end:, r] == total[min(end, 40) - 1, r]).all()


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_the_engine_rests_where_the_plain_loop_does(name):
    model, dataset = MODELS[name]()
    runs = [replace(make_run(a, seed, n=5, data=dataset), until=12.0) for seed, a in enumerate(ALGORITHMS)]
    initial = [scattered(model, one.clients, one.seed, dtype=torch.float64) for one in runs]
    for one, start, looks in zip(runs, initial, advance(runs, model, iterations=25, initial=initial), strict=True):
        *_, last = plain_loop(one, model, start, iterations=25, batch_size=4)
        assert torch.allclose(looks[-1].theta, last, rtol=0, atol=1e-10)


def test_a_study_is_the_same_up_to_the_bound_and_repeats_itself_after_it():
    free, bound = run(config()).metrics, run(config(until=30.0)).metrics
    keys = ["algorithm", "seed", "iteration"]
    both = free.merge(bound, on=keys, suffixes=("", "_bound"))
    before = both[both["delay_total"] <= 30.0]
    assert len(before) >= 20
    for column in ("delay_total", "sgd_steps", "accuracy", "loss"):
        assert (before[column] == before[f"{column}_bound"]).all()
    for _, rows in bound.groupby(["algorithm", "seed"]):
        over = rows[rows["delay_total"] >= 30.0].drop(columns=["algorithm", "iteration", "optimality_error"])
        assert np.allclose(over.astype(float), over.astype(float).iloc[:1], rtol=1e-12)
    assert (bound["delay_total"] < free["delay_total"].max()).all()


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), "soon"])
def test_a_bound_that_is_no_delay_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"train\.until_delay"):
        config(until=wrong)


def test_what_has_not_changed_is_not_judged_again(monkeypatch):
    """Unless the rule is one's own: its models may change although nothing fires."""
    looked, judge = [], Problem.judge

    def counted(self, packed, dataset, check=None):
        looked.append(len(packed))
        return judge(self, packed, dataset, check)

    monkeypatch.setattr(Problem, "judge", counted)
    settings = config(until=30.0)
    known = run(settings).metrics
    few = sum(looked)
    monkeypatch.setattr(study, "RULES", {})
    anew = run(settings).metrics
    assert few < (sum(looked) - few) * 0.8
    pd.testing.assert_frame_equal(known, anew)
