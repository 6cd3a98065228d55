"""The named models: sizes by hand, losses, and errors that name what is allowed."""

import pytest
import torch

from dspodfl.errors import InputError
from dspodfl.problem.models import MODELS, build


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "params", "count", "loss"),
    [
        ("svm", (1, 28, 28), 10, {}, 7850, "hinge"),
        ("svm", (784,), 10, {}, 7850, "hinge"),
        ("logistic", (20,), 3, {"l2": 0.1}, 63, "cross_entropy"),
        ("linear", (20,), 1, {"l2": 0.1}, 20, "squared_error"),
        ("mlp", (1, 28, 28), 10, {}, 784 * 64 + 64 + 64 * 10 + 10, "cross_entropy"),
        ("mlp", (6,), 1, {"hidden": [5, 4]}, 6 * 5 + 5 + 5 * 4 + 4 + 4 + 1, "squared_error"),
        (
            "cnn",
            (1, 28, 28),
            10,
            {},
            9 * 16 + 16 + 16 * 9 * 32 + 32 + 32 * 7 * 7 * 10 + 10,
            "cross_entropy",
        ),
        ("cnn", (3, 9, 5), 2, {"channels": [4]}, 3 * 9 * 4 + 4 + 4 * 4 * 2 * 2 + 2, "cross_entropy"),
    ],
)
def test_a_named_model_has_the_size_and_loss_of_its_definition(name, shape, outputs, params, count, loss):
    model = build(name, shape, outputs, **params)
    assert (model.name, model.parameters, model.loss) == (name, count, loss)
    assert (model.input_shape, model.outputs, model.l2) == (shape, outputs, params.get("l2", 0.0))
    assert model.initial(0).shape == (count,)
    assert model.scores(model.initial(0), torch.zeros(2, *shape)).shape == (2, outputs)


def test_hidden_layers_and_blocks_have_relu_between_them():
    mlp = build("mlp", (2,), 1, hidden=[1])
    theta = torch.tensor([1.0, 1.0, 0.0, 2.0, 0.5])
    assert mlp.scores(theta, torch.tensor([[3.0, 1.0], [-3.0, 1.0]])).tolist() == [[8.5], [0.5]]
    kinds = [type(layer).__name__ for layer in build("cnn", (1, 4, 4), 2).module.children()]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Flatten", "Linear"]


def test_an_unknown_model_is_an_error_that_lists_all_and_names_the_nearest():
    with pytest.raises(InputError, match="svm, logistic, linear, mlp, cnn, vgg11; did you mean 'vgg11'") as error:
        build("vgg", (3, 32, 32), 10)
    assert error.value.field == "model.name"


@pytest.mark.parametrize("name", list(MODELS))
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(name):
    with pytest.raises(InputError, match=rf"model\.l3 = 1: must be left out: {name} takes .*did you mean 'l2'"):
        build(name, (3, 32, 32), 10, l3=1)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("mlp", "hidden", []),
        ("mlp", "hidden", [0]),
        ("mlp", "hidden", 64),
        ("mlp", "hidden", [True]),
        ("cnn", "channels", [3.5]),
        ("cnn", "channels", "16"),
    ],
)
def test_widths_that_are_not_positive_integers_are_refused(name, field, value):
    with pytest.raises(InputError, match=rf"model\.{field}.*positive integers"):
        build(name, (1, 28, 28), 10, **{field: value})


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "message"),
    [
        ("cnn", (784,), 10, r"images \(channels, height, width\); the inputs are \(784,\)"),
        ("cnn", (1, 3, 28), 10, "at least 4×4"),
        ("vgg11", (3072,), 10, "images"),
        ("vgg11", (1, 28, 28), 10, "at least 32×32"),
        ("svm", (784,), 1, "at least 2 classes"),
        ("logistic", (784,), 1, "at least 2 classes"),
        ("vgg11", (3, 32, 32), 1, "at least 2 classes"),
        ("linear", (784,), 10, "regression"),
    ],
)
def test_data_that_do_not_suit_a_model_are_refused(name, shape, outputs, message):
    with pytest.raises(InputError, match=message) as error:
        build(name, shape, outputs)
    assert (error.value.field, error.value.value) == ("model.name", name)


def test_an_empty_input_shape_is_refused():
    with pytest.raises(ValueError, match="at least one axis"):
        build("svm", (), 10)
