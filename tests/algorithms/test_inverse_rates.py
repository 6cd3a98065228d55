"""Steps of α/d_i: where DSpodFL ends with them and without, and which methods take them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, OPTIMUM, RING, B, D, N, minimizer
from tests.edge import CommandLine, on_the_cpu, tiny
from tests.worlds import ALGORITHMS, MODELS, advance, final, make_run, scattered

from dspodfl import run
from dspodfl.algorithms import Algorithm, Constant, inverse_cap, named
from dspodfl.algorithms.inverse_rates import DEFAULT_CAP
from dspodfl.engine import Stack, plain_loop
from dspodfl.errors import ConfigError, InputError
from dspodfl.network.laws import FixedValues
from dspodfl.study.builder import build

OF_RATES = torch.from_numpy(minimizer(D))


def world(cap=None, algorithm="dspodfl", alpha=0.005, d=D):
    rates = {"sgd": FixedValues(d.tolist()), "link": FixedValues(B.tolist())}
    return replace(make_run(algorithm, data=DATA, graph=RING, learning_rate=Constant(alpha), **rates), inverse_cap=cap)


@pytest.mark.parametrize(("cap", "from_mean", "from_weighted"), [(100.0, 0.027, 0.352), (None, 0.366, 0.008)])
def test_the_average_model_ends_near_the_minimizer_of_the_mean_with_them_and_of_the_weighted_mean_without(
    cap, from_mean, from_weighted
):
    start = [torch.zeros(N, 3, dtype=torch.float64)]
    (looks,) = advance([world(cap)], MODEL, iterations=24_000, every=40, initial=start, batch=1)
    late = torch.stack([look.theta.mean(dim=0) for look in looks if look.iteration > 12_000]).mean(dim=0)
    assert float((late - OPTIMUM).norm()) == pytest.approx(from_mean, abs=0.02)
    assert float((late - OF_RATES).norm()) == pytest.approx(from_weighted, abs=0.02)


def test_a_step_is_the_learning_rate_by_the_probability_of_the_schedule_and_not_by_the_rate():
    """DGD fires always, whatever the rates: its steps are α, with the setting and without."""
    k = np.arange(3)
    assert np.allclose(world(100.0).step_sizes(k), 0.005 / D)
    assert (world(100.0, "dgd").step_sizes(k) == 0.005).all() and (world(100.0, "rg").step_sizes(k) == 0.005).all()
    assert np.allclose(world(100.0, "sporadic_sgd").step_sizes(k), 0.005 / D)
    assert np.allclose(world(2.0).step_sizes(k), 0.005 * np.minimum(1 / D, 2.0))
    assert world().step_sizes(k).tolist() == [[0.005]] * 3


def test_rates_that_are_tiny_are_capped():
    tiny_rates = np.full(N, 1e-6)
    assert world(50.0, d=tiny_rates).step_sizes(np.arange(1)).max() == pytest.approx(0.005 * 50)


def test_only_runs_that_have_them_take_other_steps_and_those_of_a_stack_are_those_alone():
    plain, inverse = world(), world(100.0)
    (block,) = Stack([plain, inverse, world(100.0, "dgd")]).blocks(5, 5)
    assert (block.lr[:, :N] == 0.005).all() and (block.lr[:, 2 * N :] == 0.005).all()
    assert np.allclose(block.lr[:, N : 2 * N].numpy(), 0.005 / D)
    one, two = final([plain, inverse], MODEL, iterations=60, batch=1)
    assert torch.equal(one, final([plain], MODEL, iterations=60, batch=1)[0])
    assert torch.equal(two, final([inverse], MODEL, iterations=60, batch=1)[0])
    assert not torch.equal(one, two)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("order", ["simultaneous", "combine_then_adapt", "adapt_then_combine"])
def test_the_engine_is_the_plain_loop(algorithm, order):
    model, dataset = MODELS["svm"]()
    one = replace(make_run(algorithm, 3, data=dataset), inverse_cap=4.0)
    start = scattered(model, one.clients, 3).double()
    *_, expected = plain_loop(one, model, start, iterations=40, batch_size=4, order=order)
    (found,) = final([one], model, iterations=40, rule=order, initial=[start])
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)


def test_where_every_client_always_steps_they_change_nothing_to_the_bit():
    model, dataset = MODELS["svm"]()
    without = make_run("rg", data=dataset)
    one, other = final([without, replace(without, inverse_cap=100.0)], model, iterations=30)
    assert torch.equal(one, other)


# --- as a setting ---------------------------------------------------------------------------------------------


def test_the_setting_reaches_the_runs_from_a_table_and_from_python():
    table = {"name": "dspodfl", "label": "inverse", "settings": {"inverse_rates": True, "cap": 50}}
    _, study = build(
        tiny(algorithms=["dspodfl", table, {**table, "label": "100", "settings": {"inverse_rates": True}}])
    )
    assert [one.inverse_cap for one in study.runs] == [None, 50.0, DEFAULT_CAP]
    own = Algorithm("own", schedule=named("dspodfl"), settings={"inverse_rates": True, "cap": 7})
    off = {**table, "label": "off", "settings": {"inverse_rates": False}}
    rates = {"sgd": {"law": "uniform"}, "link": {"law": "uniform"}}
    found = run(tiny(rates=rates), algorithms=["dspodfl", table, own, off], device="cpu")
    last = found.metrics.groupby("algorithm")["loss"].last()
    assert last["off"] == last["dspodfl"] != last["inverse"] and last["own"] != last["dspodfl"]
    assert inverse_cap(own.settings) == 7.0


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"name": "gradient_tracking", "settings": {"inverse_rates": True}},
            r"inverse_rates = True.*Gradient tracking",
        ),
        ({"name": "dspodfl", "settings": {"inverse_rates": "yes"}}, r"inverse_rates = 'yes': must be true or false"),
        ({"name": "dspodfl", "settings": {"inverse_rates": True, "cap": 0.5}}, r"cap = 0.5: must be a finite number"),
        ({"name": "dspodfl", "settings": {"inverse_rates": True, "cap": True}}, r"cap = True: must be"),
        ({"name": "dspodfl", "settings": {"cap": 5}}, r"cap = 5: must be left out"),
        ({"schedule": "dspodfl", "rule": "gradient_tracking", "settings": {"inverse_rates": True}}, "left out"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(table, says):
    with pytest.raises(ConfigError, match=says):
        tiny(algorithms=[table])


def test_a_method_that_corrects_gradients_is_refused_on_the_command_line_with_exit_code_2(
    monkeypatch, capsys, tmp_path
):
    on_the_cpu(monkeypatch)
    dspodfl = CommandLine(monkeypatch, capsys, tmp_path)
    given = 'algorithms=[{name="gradient_tracking",settings={inverse_rates=true}}]'
    answer = dspodfl("run", "--set", given, "--out", "out")
    assert answer.code == 2 and "algorithms.settings.inverse_rates = True" in answer.err
    assert "Gradient tracking" in answer.err and not (tmp_path / "out").exists()


def test_a_schedule_that_does_not_know_its_probabilities_is_refused_before_anything_runs():
    def always(k, part, rates):
        return named("dgd")(k, part, rates)

    given = Algorithm("always", schedule=always, settings={"inverse_rates": True})
    with pytest.raises(InputError, match=r"inverse_rates.*does not know with which probability.*'always'"):
        run(tiny(), algorithms=[given], device="cpu")
