"""Anarchic federated learning: which form is exact, and a plain loop."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import N, gradient
from tests.algorithms.served import SMALL, after_each, begun, of_server, random_events

from dspodfl.algorithms import Algorithm, make
from dspodfl.algorithms.methods.anarchic import Anarchic
from dspodfl.algorithms.star import Anarchy
from dspodfl.errors import InputError
from dspodfl.network import Part
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates

CONTRACT = {"graph": SMALL, "moves_the_mean": True}
B = np.resize(instance.B, N).tolist()


def final(rule, seed=0, **how):
    return instance.models(rule, schedule=Anarchy(), seed=seed, b=B, **how)


def test_with_one_step_the_last_gradients_of_all_are_exact_and_those_of_uploaders_are_not():
    for rate in (1.0, 2.0):
        assert of_server(final(Anarchic("cs", 1, rate), iterations=1500)) < 1e-12
        off = [of_server(final(Anarchic("cd", 1, rate), seed=seed, iterations=400)) for seed in range(5)]
        assert np.mean(off) > 0.15


@dataclass(frozen=True)
class Sum(Anarchic):
    """Wrong: the sum of local gradients in place of their mean."""

    def step(self, theta, state, at):
        start, count, taken, held = state
        return super().step(theta, (start, count, taken / count.clamp(min=1), held), at)


def rounds(steps, iterations, least=0):
    """All clients take some steps, at least so many, and then upload."""
    k = np.arange(iterations) % (steps + 1)
    v, v_hat = (np.repeat(fires[:, None], count, 1) for fires, count in ((k < steps, N + 1), (k == steps, N)))
    v[:, N] = False
    for i in range(N if least else 0):
        v[k >= least + i % (steps - least + 1), i] = False
    return v, v_hat


@pytest.mark.parametrize(("alpha", "found"), [(0.05, 8.8e-3), (0.01, 1.9e-3)])
def test_with_four_steps_it_is_off_by_about_their_length(alpha, found):
    start = torch.zeros(N + 1, 3, dtype=torch.float64)
    models = after_each(Anarchic("cs", None, 0.1 / alpha), *rounds(4, 3000), alpha=alpha, start=start)
    assert of_server(models[-1]) == pytest.approx(found, rel=0.02)


def test_the_sum_of_local_gradients_leans_to_clients_that_take_more_steps():
    start = torch.zeros(N + 1, 3, dtype=torch.float64)
    right, wrong = (
        of_server(after_each(rule("cs", None, 4.0), *rounds(4, 4000, least=1), alpha=0.01, start=start)[-1])
        for rule in (Anarchic, Sum)
    )
    assert right < 0.02
    assert wrong > 0.1


def loop(v, v_hat, form, steps, rate, alpha=0.05):
    """The models of the clients and of the server after every iteration."""
    theta, x = begun()
    start, taken, held, found = dict(theta), dict.fromkeys(range(N), 0), {}, []
    for k in range(len(v)):
        fired = [i for i in range(N) if v_hat[k, i]]
        new = {i: (start[i] - theta[i]) / (alpha * taken[i]) for i in fired if taken[i]}
        held |= new
        if new:
            mean = np.mean(list(new.values()), axis=0) if form == "cd" else sum(held.values()) / N
            x = x - rate * alpha * mean
        for i in fired:
            theta[i], start[i], taken[i] = x, x, 0
        for i in range(N):
            if v[k, i] and (steps is None or taken[i] < steps):
                theta[i], taken[i] = theta[i] - alpha * gradient(i, theta[i]), taken[i] + 1
        found.append([*theta.values(), x])
    return np.array(found)


@pytest.mark.parametrize("form", ["cd", "cs"])
@pytest.mark.parametrize("steps", [None, 1, 3])
def test_it_is_a_plain_loop_whatever_fires(form, steps):
    v, v_hat = random_events(60, share=0.4)
    models = after_each(Anarchic(form, steps, 1.5), v, v_hat)[1:].numpy()
    assert np.abs(models - loop(v, v_hat, form, steps, 1.5)).max() < 1e-10


def test_the_server_never_steps_and_clients_and_links_fire_with_their_rates():
    graph = Anarchy().graph(instance.RING)
    rates = Rates(graph, 0, FixedValues(instance.D.tolist()), FixedValues(B))
    events = Anarchy()(np.arange(4000), Part.whole(graph, 0), rates)
    assert not events.v[:, N].any()
    assert events.v[:, :N].mean(axis=0) == pytest.approx(instance.D, abs=0.04)
    assert events.v_hat.mean(axis=0) == pytest.approx(B, abs=0.04)


def test_a_use_carries_a_gradient_up_and_a_model_down():
    assert not hasattr(Anarchic(), "sent")  # 4p bytes each way


@pytest.mark.parametrize(("key", "value"), [("form", "cx"), ("steps", 0), ("server_rate", 0)])
def test_bad_settings_are_refused(key, value):
    with pytest.raises(InputError, match=key):
        make(Algorithm("anarchic", schedule="anarchic", rule="anarchic", settings={key: value}))
