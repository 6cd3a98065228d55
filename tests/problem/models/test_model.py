"""Model: one flat vector for any structure, and functions of it that stack."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import grad, vmap

from dspodfl.errors import InputError
from dspodfl.problem.models import LOSSES, Model, build

SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=4).map(tuple), min_size=1, max_size=5)
LEAD = st.lists(st.integers(1, 3), max_size=2).map(tuple)


class Bag(nn.Module):
    """Parameters of any shapes."""

    def __init__(self, shapes):
        super().__init__()
        for number, shape in enumerate(shapes):
            setattr(self, f"p{number}", nn.Parameter(torch.full(shape, float(number))))


def bag(shapes):
    return Model("bag", Bag(shapes), "cross_entropy", (1,), 2)


@given(SHAPES, LEAD)
def test_unflatten_and_flatten_are_inverse_for_any_shapes_and_leading_axes(shapes, lead):
    model = bag(shapes)
    size = int(torch.tensor(lead).prod()) * model.parameters
    theta = torch.arange(float(size)).reshape(*lead, model.parameters)
    state = model.unflatten(theta)
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        f"p{number}": (*lead, *shape) for number, shape in enumerate(shapes)
    }
    assert torch.equal(model.flatten(state), theta)


@given(SHAPES)
def test_unflatten_gives_views_of_theta(shapes):
    model = bag(shapes)
    theta = torch.zeros(model.parameters)
    for value in model.unflatten(theta).values():
        value.fill_(1.0)
    assert theta.eq(1).all()


def test_unflatten_works_on_vectors_that_are_not_contiguous():
    model = bag([(2, 3), (), (4,)])
    stack = torch.randn(11, 5)
    assert torch.equal(model.flatten(model.unflatten(stack.T)), stack.T)


def test_the_flat_order_of_a_linear_layer_is_weight_rows_then_bias():
    model = build("svm", (3,), 2)
    state = model.unflatten(torch.arange(8.0))
    assert state["linear.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert state["linear.bias"].tolist() == [6, 7]


def test_vectors_and_states_of_the_wrong_form_are_refused():
    model = build("svm", (3,), 2)
    with pytest.raises(ValueError, match="last axis must be 8"):
        model.unflatten(torch.zeros(7))
    with pytest.raises(ValueError, match=r"no value for linear\.bias"):
        model.flatten({"linear.weight": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"linear\.bias has shape \(3,\)"):
        model.flatten({"linear.weight": torch.zeros(2, 3), "linear.bias": torch.zeros(3)})


def test_a_model_without_a_draw_starts_from_its_module_whatever_the_seed():
    model = bag([(2,), (1,)])
    theta = model.initial(0)
    assert theta.tolist() == [0.0, 0.0, 1.0]
    theta.fill_(9.0)
    assert model.initial(5).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("l2", [-1.0, float("nan"), float("inf"), True, "1"])
def test_a_penalty_that_is_no_number_from_zero_is_refused(l2):
    with pytest.raises(InputError, match=r"model\.l2"):
        build("logistic", (3,), 2, l2=l2)


def test_an_unknown_loss_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'hinge'"):
        Model("bag", Bag([(1,)]), "hing", (1,), 2)


def inputs(model, *lead, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(*lead, *model.input_shape, generator=generator, dtype=dtype)
    if model.loss == "squared_error":
        return x, torch.randn(*lead, generator=generator, dtype=dtype)
    return x, torch.randint(model.outputs, lead, generator=generator)


CASES = [
    ("svm", (1, 4, 4), 3, {}),
    ("logistic", (16,), 3, {"l2": 0.1}),
    ("linear", (16,), 1, {"l2": 0.5}),
    ("mlp", (1, 4, 4), 3, {"hidden": [5, 4]}),
    ("mlp", (6,), 1, {}),
    ("cnn", (2, 8, 8), 3, {"channels": [3, 4]}),
]


@pytest.mark.parametrize(("name", "shape", "outputs", "params"), CASES)
def test_a_stack_of_models_under_vmap_equals_a_loop(name, shape, outputs, params):
    model = build(name, shape, outputs, **params)
    theta = torch.stack([model.initial(seed) for seed in range(4)]).double()
    x, y = inputs(model, 4, 6)
    scores = vmap(model.scores)(theta, x)
    gradient = vmap(grad(model.objective))(theta, x, y)
    assert scores.shape == (4, 6, outputs)
    for row in range(4):
        torch.testing.assert_close(scores[row], model.scores(theta[row], x[row]))
        torch.testing.assert_close(gradient[row], grad(model.objective)(theta[row], x[row], y[row]))


@pytest.mark.parametrize(("name", "shape", "outputs", "params"), CASES)
def test_the_objective_is_the_mean_loss_plus_half_l2_times_the_squared_norm(name, shape, outputs, params):
    model = build(name, shape, outputs, **params)
    theta = model.initial(1).double()
    x, y = inputs(model, 6)
    loss = LOSSES[model.loss](model.scores(theta, x), y)
    assert loss.shape == (6,)
    expected = loss.mean() + params.get("l2", 0.0) / 2 * theta @ theta
    torch.testing.assert_close(model.objective(theta, x, y), expected)


@pytest.mark.parametrize(("name", "shape", "outputs", "params"), CASES)
def test_linear_models_are_one_affine_map_and_only_they_say_so(name, shape, outputs, params):
    model = build(name, shape, outputs, **params)
    assert model.is_linear == (name in {"svm", "logistic", "linear"})
    if model.is_linear:
        theta = model.initial(2).double()
        x, _ = inputs(model, 5)
        weight = theta[: outputs * 16].reshape(outputs, 16)
        bias = theta[outputs * 16 :] if name != "linear" else torch.zeros(1, dtype=torch.float64)
        torch.testing.assert_close(model.scores(theta, x), x.reshape(5, 16) @ weight.T + bias)


def test_a_model_with_constants_keeps_them_and_moves_only_them():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)
            self.fixed = nn.Parameter(torch.full((2,), 3.0), requires_grad=False)
            self.register_buffer("scale", torch.full((2,), 2.0))
            self.register_buffer("count", torch.tensor([4]))

        def forward(self, x):
            return self.inner(x) * self.scale + self.fixed + self.count

    model = Model("scaled", Scaled(), "cross_entropy", (3,), 2)
    double = model.to(dtype=torch.float64)
    assert list(model.shapes) == ["inner.weight", "inner.bias"]
    assert model.scores(torch.zeros(8), torch.zeros(1, 3)).tolist() == [[7.0, 7.0]]
    assert (double.module.scale.dtype, double.module.fixed.dtype) == (torch.float64, torch.float64)
    assert double.module.count.dtype == torch.int64
    assert model.module.scale.dtype == torch.float32
    assert double.module.inner.weight is model.module.inner.weight
    assert torch.equal(double.initial(0), model.initial(0))
    assert model.to("meta").module.scale.is_meta


def test_a_model_without_constants_moves_as_it_is():
    model = build("svm", (3,), 2)
    assert model.to("cpu", torch.float64) is model
