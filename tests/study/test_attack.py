"""Attackers in a study: what is refused, what they hold, and whose metrics are reported."""

import numpy as np
import pytest
import torch
from tests.edge import TINY, merged, on_the_cpu, tiny

from dspodfl import ConfigError, Dataset, InputError, run
from dspodfl.algorithms import Algorithm
from dspodfl.algorithms.attacks import SignFlip
from dspodfl.engine import Stack
from dspodfl.problem import optimum
from dspodfl.problem.data import Federation
from dspodfl.study import UserInputs, build
from dspodfl.study.study import joined


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def attack(kind="sign_flip", clients=(1,), **more):
    return {"kind": kind, "clients": list(clients), **more}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (attack(clients=[4]), r"attack.clients = \[4\]: must be clients: there are 0 … 3"),
        (attack(clients=[1, 1]), "different clients: one is there twice"),
        (attack(clients=[0, 1, 2, 3]), r"attack.clients = .* fewer than all 4 clients"),
        (attack("alie", [0, 1, 2]), r"attack.z = None: must be given"),
    ],
)
def test_attackers_are_clients_and_some_are_honest(table, message):
    with pytest.raises(InputError, match=message):
        build(tiny(attack=table))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (attack(clients=[]), "at least 1"),
        (attack(clients=[-1]), r"attack.clients\[0\] = -1"),
        (attack("nonsense"), "one of alie, sign_flip, noise, ipm, label_flip, dissensus"),
        (attack("noise", std=0), r"attack.std = 0"),
        (attack("sign_flip", z=1.0), "attack.z"),
        ({"kind": "sign_flip"}, "attack.clients: missing"),
    ],
)
def test_tables_that_are_not_valid_are_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        tiny(attack=table)


def test_labels_of_a_regression_cannot_be_flipped():
    with pytest.raises(ConfigError, match=r"attack.kind = 'label_flip': must be another attack"):
        tiny(data={"name": "ridge"}, attack=attack("label_flip"))
    x, y = np.zeros((8, 2), np.float32), np.zeros(8, np.float32)
    own = UserInputs(data=Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(8).reshape(4, 2)), {}))
    with pytest.raises(InputError, match=r"attack.kind = 'label_flip': must be another attack"):
        build(tiny(model={"name": "linear"}, data={"name": "custom"}, attack=attack("label_flip")), own)


def test_methods_that_send_other_things_are_refused_by_name_unless_labels_are_flipped():
    for kind in ("alie", "dissensus"):
        more = {"z": 1.0} if kind == "alie" else {}
        with pytest.raises(InputError, match=r"left out with 'gradient_tracking': it sends 2 models"):
            build(tiny(algorithms=["dspodfl", "gradient_tracking"], attack=attack(kind, **more)))
    build(tiny(algorithms=["dspodfl", "gradient_tracking"], attack=attack("label_flip")))


class Own:
    """A rule that does not say what it sends."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return at.mix(theta), state


class Declared(Own):
    """One that does."""

    sends_models = True

    def step(self, theta, state, at):
        return at.mix(theta), state


def test_rules_of_a_user_have_to_declare_that_they_send_models():
    config = merged(TINY, {"attack": attack()})
    with pytest.raises(InputError, match=r"left out with 'mine': its rule does not declare sends_models"):
        run(config, algorithms=[Algorithm("mine", schedule="dgd", rule=Own())], device="cpu")
    run(config, algorithms=[Algorithm("mine", schedule="dgd", rule=Declared())], device="cpu")


def test_flipped_labels_are_those_of_attackers_alone():
    before, after = (build(tiny(**more))[1].settings[0].data for more in ({}, {"attack": attack("label_flip", [1, 3])}))
    for client in range(4):
        y, flipped = (data.dataset.y_train[data.shards[client]] for data in (before, after))
        x, same = (data.dataset.x_train[data.shards[client]] for data in (before, after))
        assert np.array_equal(flipped, 3 - y if client in (1, 3) else y) and np.array_equal(x, same)
    assert np.array_equal(before.dataset.y_test, after.dataset.y_test)


def test_samples_that_several_clients_hold_are_flipped_for_attackers_alone():
    shared = {"data": {"partition": {"kind": "shared", "samples": 40}}}
    before, after = (
        build(tiny(**shared, **more))[1].settings[0].data for more in ({}, {"attack": attack("label_flip")})
    )
    for client in (0, 2, 3):
        y, kept = (data.dataset.y_train[data.shards[client]] for data in (before, after))
        assert np.array_equal(y, kept)


def test_metrics_are_those_of_honest_clients():
    found = run(tiny(algorithms=["dspodfl"], attack=attack(clients=[1, 3])), device="cpu")
    last = found.metrics[found.metrics["iteration"] == 4].iloc[0]
    models = torch.stack([torch.cat([w[i].flatten() for w in found.stacked["dspodfl", 0].values()]) for i in range(4)])
    honest = models[[0, 2]].double()
    assert last["consensus_error"] == pytest.approx(float((honest - honest.mean(dim=0)).square().sum()), rel=1e-5)
    clients = found.clients.set_index("client")
    assert clients["attacker"].tolist() == [False, True, False, True]
    assert clients["final_accuracy"].isna().tolist() == [False, True, False, True]
    assert last["accuracy"] == pytest.approx(clients["final_accuracy"].mean())
    assert last["accuracy_min"] == clients["final_accuracy"].min()


def test_without_an_attack_nothing_says_so():
    found = run(tiny(), device="cpu")
    assert "attacker" not in found.clients


def test_evaluated_clients_are_drawn_among_the_honest():
    found = run(tiny(algorithms=["dspodfl"], attack=attack(clients=[2]), eval={"clients": 2}), device="cpu")
    accuracy = found.clients.set_index("client")["final_accuracy"]
    assert accuracy.count() == 2 and np.isnan(accuracy[2])


def test_the_minimizer_is_that_of_honest_clients():
    table = {"data": {"name": "ridge", "samples": 20, "dimension": 3}, "model": {"name": "linear"}}
    everyone, honest = (build(tiny(**table, **more))[1] for more in ({}, {"attack": attack(clients=[0, 1])}))
    data, best = honest.settings[0].data, honest.settings[0].data.optimum
    shards = optimum.shards(honest.model, data)
    gradient = sum(x.T @ (x @ best - y) / len(y) for x, y in shards[2:]) / 2 + honest.model.l2 * best
    assert np.abs(gradient).max() < 1e-12
    whole = everyone.settings[0].data
    again = optimum.least_squares(everyone.model, whole)
    assert np.abs(again - whole.optimum).max() < 1e-10 and np.abs(best - whole.optimum).max() > 1e-3
    logistic = {"model": {"name": "logistic", "l2": 0.1}}
    one, other = (build(tiny(**logistic, **more))[1].settings[0].data for more in ({}, {"attack": attack()}))
    assert np.abs(one.optimum - other.optimum).max() > 1e-3


def test_runs_under_other_attacks_are_never_stacked():
    studies = [build(tiny(attack=table))[1] for table in (attack(), attack("noise"), attack(clients=[2]))]
    both = joined([*studies, build(tiny())[1], build(tiny(attack=attack()))[1]])
    assert both.groups == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]
    assert Stack(studies[0].runs).attack == studies[0].runs[0].attack
    assert studies[0].runs[0].attack.kind == SignFlip()


def test_a_study_under_attack_is_resumed_to_the_last_bit(tmp_path):
    config = tiny(algorithms=["dspodfl", "clipped_gossip"], attack=attack("noise"), train={"iterations": 8})
    whole = run(config, device="cpu")
    run(config, device="cpu", out=tmp_path / "one", callbacks=[lambda update: update.iteration == 4])
    rest = run(resume=tmp_path / "one", device="cpu")
    assert rest.metrics.equals(whole.metrics)
    assert rest.config["attack"]["clients"] == [1]
