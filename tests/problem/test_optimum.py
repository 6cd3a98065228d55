"""θ* of linear models: found where it can be, in the model's own order, and left unknown elsewhere."""

import numpy as np
import pytest
import torch
from tests.edge import tiny
from torch.func import grad

from dspodfl import run
from dspodfl.errors import InputError
from dspodfl.problem import optimum
from dspodfl.study.builder import build

LOGISTIC = {"name": "logistic", "l2": 0.2}


def made(**changes):
    _, study = build(tiny(**changes))
    return study, study.settings


def test_the_minimizer_of_logistic_regression_is_stationary_for_the_model_itself():
    study, settings = made(model=LOGISTIC)
    data, gradient = settings[0].data, grad(study.model.objective)
    theta = torch.from_numpy(data.optimum)
    x, y = torch.from_numpy(data.dataset.x_train).double(), torch.from_numpy(data.dataset.y_train)
    each = torch.stack([gradient(theta, x[s], y[s]) for s in data.shards])
    assert float(each.mean(dim=0).norm()) < 1e-6 < float(each.norm())


@pytest.mark.parametrize("model", [LOGISTIC, {"name": "linear"}])
def test_rows_and_the_models_order_are_inverse(model):
    study, _ = made(**({"data": {"name": "ridge"}} if model["name"] == "linear" else {}), model=model)
    theta = np.arange(study.model.parameters, dtype=float)
    assert np.array_equal(optimum.from_rows(study.model, optimum.to_rows(study.model, theta)), theta)
    if model["name"] == "logistic":  # 3 features, 4 classes: w_0, b_0 first
        assert optimum.to_rows(study.model, theta)[:4].tolist() == [0, 1, 2, 12]


def test_logistic_runs_record_how_far_the_average_model_is_from_the_minimizer():
    config = tiny(model=LOGISTIC, train={"iterations": 400, "batch_size": 20, "learning_rate": {"value": 0.1}})
    errors = run(config, device="cpu").metrics.groupby("iteration")["optimality_error"].mean()
    assert errors.notna().all() and errors.loc[400] < 0.2 * errors.loc[0]


def test_where_there_is_none_or_it_would_take_long_it_stays_unknown(monkeypatch):
    for model in ({"name": "svm"}, {"name": "logistic"}, {"name": "mlp"}):
        assert made(model=model)[1][0].data.optimum is None
    monkeypatch.setattr(optimum, "LARGEST", 60 * 3 * 4 - 1)
    assert made(model=LOGISTIC)[1][0].data.optimum is None
    monkeypatch.setattr(optimum, "LARGEST", 60 * 3 * 4)
    assert made(model=LOGISTIC)[1][0].data.optimum is not None


def test_a_minimum_that_newtons_method_does_not_find_is_left_unknown(monkeypatch):
    def lost(*_):
        raise InputError("tolerance", 1e-10, "reachable")

    monkeypatch.setattr(optimum, "logistic_minimum", lost)
    assert made(model=LOGISTIC)[1][0].data.optimum is None
