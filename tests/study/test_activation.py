"""Studies of clients and links that come and go: paired, and resumed to the last bit."""

import itertools

import numpy as np
import pandas as pd
import pytest
from tests.edge import tiny

from dspodfl import run

RATES = {
    "sgd": {"law": "constant", "value": 0.8},
    "availability": {"kind": "stragglers", "shift": 1.0, "rate": 2.0},
    "channel": {"kind": "gilbert_elliott", "up": 0.4, "down": 0.3},
    "churn": {"kind": "markov", "up": 0.4, "down": 0.2},
}
FIVE = ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]


def study(**more):
    train = {"iterations": 40, "batch_size": 2}
    return tiny(seeds=2, algorithms=FIVE, rates=RATES, train=train, eval={"every": 10}, **more)


def test_all_algorithms_of_a_study_have_the_same_clients_and_links_on():
    found = run(study(), device="cpu", record_events=True).events
    for seed in (0, 1):
        everything = found["dgd", seed][0]
        assert 0 < everything.v.mean() < 0.7 and 0 < everything.v_hat.mean() < 0.7
        for algorithm in FIVE:
            events = found[algorithm, seed][0]
            assert not (events.v & ~everything.v).any() and not (events.v_hat & ~everything.v_hat).any()
    assert not np.array_equal(found["dgd", 0][0].v, found["dgd", 1][0].v)


def test_a_seed_of_the_rates_pins_who_is_on():
    found = run(tiny(seeds=2, algorithms=["dgd"], rates=RATES | {"seed": 5}), record_events=True)
    assert np.array_equal(found.events["dgd", 0][0].v, found.events["dgd", 1][0].v)


@pytest.mark.parametrize("stop", [1, 3])
def test_a_study_is_resumed_to_the_last_bit(stop, tmp_path):
    whole, count = run(study(), device="cpu", record_events=True), itertools.count()
    run(study(), device="cpu", out=tmp_path / "out", callbacks=[lambda _: next(count) >= stop], record_events=True)
    again = run(resume=tmp_path / "out", device="cpu")
    pd.testing.assert_frame_equal(whole.metrics, again.metrics, check_exact=True)
    for key, (events, _) in whole.events.items():
        assert np.array_equal(events.v, again.events[key][0].v)
        assert np.array_equal(events.v_hat, again.events[key][0].v_hat)
