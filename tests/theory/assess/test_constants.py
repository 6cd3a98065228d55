"""The constants of a problem are those of the model and data a study would train, labelled with their source."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.edge import tiny
from torch.func import grad

from dspodfl.errors import InputError
from dspodfl.study.builder import build
from dspodfl.theory.assess import estimate
from dspodfl.theory.assess.assessment import worst
from dspodfl.theory.assess.constants import CERTIFIED, EXACT, FULL, MEASURED

RIDGE = {"data": {"name": "ridge", "samples": 12, "dimension": 3, "l2": 0.5}, "model": {"name": "linear"}}
LOGISTIC = {"model": {"name": "logistic", "l2": 0.2}}


def made(**changes):
    _, study = build(tiny(**changes))
    return study.model, study.settings[0].data


def gradients(model, data, theta):
    """∇F_i by automatic differentiation. Shapes: (p,) -> (m, p)."""
    x, y = torch.from_numpy(data.dataset.x_train).double(), torch.from_numpy(data.dataset.y_train)
    y = y.double() if y.is_floating_point() else y
    gradient = grad(model.objective)
    return np.stack([gradient(torch.from_numpy(theta), x[s], y[s]).numpy() for s in data.shards])


@pytest.mark.parametrize("changes", [RIDGE, LOGISTIC, {"model": {"name": "mlp", "hidden": [3]}}])
def test_full_gradients_have_no_noise_and_all_other_constants_are_those_of_minibatches(changes):
    model, data = made(**changes)
    full, noisy = (estimate(model, data, 0, batch, 0.1, None, 5) for batch in (0, 1))
    assert full.sigma == 0 < noisy.sigma and full.source["sigma"] == FULL
    assert replace(full, sigma=noisy.sigma, source=noisy.source).__dict__ == noisy.__dict__


def test_a_study_with_full_gradients_is_assessed_with_a_sigma_of_0():
    config = tiny(seeds=2, **RIDGE, train={"batch_size": "full", "learning_rate": 0.01})
    found = worst(
        [
            estimate(study.model, setting.data, 0, study.batch_size, 0.01, None, 5)
            for _, study in [build(config)]
            for setting in study.settings
        ]
    )
    assert (found.sigma, found.source["sigma"]) == (0, FULL)


@pytest.mark.parametrize(("changes", "kind"), [(RIDGE, EXACT), (LOGISTIC, CERTIFIED)])
def test_known_constants_hold_for_the_gradients_of_the_model_itself(changes, kind):
    model, data = made(**changes)
    found = estimate(model, data, 0, 2, 0.1, None, 5)
    assert found.kind == kind and found.guaranteed
    star, rng = data.optimum, np.random.default_rng(0)
    assert np.linalg.norm(gradients(model, data, star).mean(axis=0)) < 1e-6
    assert found.distance == pytest.approx(((model.initial(0).double().numpy() - star) ** 2).sum(), rel=1e-6)
    zeta, delta = found.pairs[0]
    for point in star + rng.normal(0, 2, (50, len(star))):
        each = gradients(model, data, point)
        whole = each.mean(axis=0)
        far = np.linalg.norm(point - star)
        assert np.linalg.norm(each - whole, axis=1).max() <= found.delta + found.zeta * far + 1e-6
        assert np.linalg.norm(each, axis=1).max() <= delta + zeta * np.linalg.norm(whole) + 1e-6
        along = (each - gradients(model, data, star)) @ (point - star) / far**2
        assert found.mu - 1e-6 <= along.min() and along.max() <= found.beta + 1e-6


@pytest.mark.parametrize("changes", [RIDGE, LOGISTIC])
def test_the_excess_is_that_of_the_objective(changes):
    model, data = made(**changes)
    x, y = torch.from_numpy(data.dataset.x_train).double(), torch.from_numpy(data.dataset.y_train)
    y = y.double() if y.is_floating_point() else y

    def loss(theta):
        return np.mean([float(model.objective(theta, x[s], y[s])) for s in data.shards])

    gap = loss(model.initial(0).double()) - loss(torch.from_numpy(data.optimum))
    assert estimate(model, data, 0, 2, 0.1, None, 5).excess == pytest.approx(gap, rel=1e-6)


def test_the_ball_of_linear_regression_is_stated_and_its_noise_grows_with_it():
    model, data = made(**RIDGE)
    near, far = (estimate(model, data, 0, 2, 0.1, reach, 5) for reach in (0.5, 5.0))
    assert "≤ 0.5" in near.source["sigma"] and near.reach == 0.5 and far.sigma > near.sigma
    default = estimate(model, data, 0, 2, 0.1, None, 5)
    assert default.reach == pytest.approx(np.sqrt(default.distance))
    assert estimate(model, data, 0, 8, 0.1, 0.5, 5).sigma == pytest.approx(near.sigma / 2)


@pytest.mark.parametrize("name", ["svm", "mlp", "logistic"])
def test_other_models_are_measured_and_labelled_as_lower_estimates(name):
    model, data = made(model={"name": name})
    found = estimate(model, data, 0, 2, 0.1, None, 5)
    assert found.kind == MEASURED and not found.guaranteed and found.mu is None
    assert all(MEASURED in source for source in found.source.values())
    zetas, deltas = zip(*found.pairs, strict=True)
    assert list(deltas) == sorted(deltas, reverse=True) and zetas[0] == 0.0
    start = model.initial(0).double().numpy()
    assert deltas[0] >= np.linalg.norm(gradients(model, data, start), axis=1).max() * (1 - 1e-6)


def test_measured_constants_never_exceed_the_certified_ones():
    sure_model, data = made(**LOGISTIC)
    sure = estimate(sure_model, data, 0, 2, 0.1, None, 5)
    from dspodfl.theory.assess import constants

    seen = constants._measured(sure_model, data, 0, 2, 0.1, 8)
    assert seen.beta <= sure.beta * (1 + 1e-9) and seen.sigma <= sure.sigma and seen.excess >= sure.excess


def test_a_trajectory_that_would_not_fit_or_blows_up_is_refused():
    model, data = made(model={"name": "mlp", "hidden": [2000]})
    with pytest.raises(InputError, match="--points"):
        estimate(model, data, 0, 2, 0.1, None, 10_000)
    with pytest.raises(InputError, match=r"model\.name"):
        estimate(*made(model={"name": "mlp", "hidden": [2_000_000]}), 0, 2, 0.1, None, 2)
    model, data = made(**RIDGE | {"model": {"name": "mlp"}})
    with pytest.raises(InputError, match="learning_rate"):
        estimate(model, data, 0, 2, 1e6, None, 40)


def test_linear_regression_without_one_minimizer_is_refused(tmp_path):
    for name, rows in (("0", 2), ("1", 2), ("test", 1)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((rows, 3), np.float32), y=np.ones(rows, np.float32))
    model, data = made(
        data={"name": "npz", "path": str(tmp_path)}, model={"name": "linear"}, clients={"count": 2},
        graph={"kind": "complete"},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"model\.l2"):
        estimate(model, data, 0, 2, 0.1, None, 5)
