"""Any module as a model: factories are repeatable, and what cannot be simulated exactly is refused."""

import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from dspodfl.errors import InputError
from dspodfl.problem.models import check_module, from_module, load_factory
from dspodfl.rng import Stream, words


def network(outputs, width=8):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs))


class Net(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], outputs)
        self.register_buffer("directions", torch.randn(4, 4))

    def forward(self, x):
        return self.layer(x @ self.directions)


def test_a_factory_s_own_initialization_is_drawn_with_the_addressed_word_of_the_seed():
    model = from_module(network, (4,), 3)
    high, low = words(5, Stream.INIT, slots=2).tolist()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((high << 31) | (low >> 1))
        module = network(3)
    assert torch.equal(model.initial(5), model.flatten(dict(module.named_parameters())))


def test_a_factory_gives_equal_values_for_equal_seeds_only_and_spares_the_global_generator():
    before = torch.get_rng_state()
    model = from_module(network, (4,), 3)
    first = model.initial(1)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(from_module(network, (4,), 3).initial(1), first)
    assert not torch.equal(model.initial(2), first)
    assert (first.dtype, first.shape, model.parameters) == (torch.float32, (67,), 67)


def test_buffers_are_those_of_seed_zero_however_the_global_generator_stands():
    first = from_module(Net, (4,), 3)
    torch.rand(3)
    second = from_module(Net, (4,), 3)
    assert torch.equal(first.module.directions, second.module.directions)
    assert list(first.shapes) == ["layer.weight", "layer.bias"]


@pytest.mark.parametrize(
    "factory",
    [
        network,
        Net,
        partial(network, width=3),
        lambda: nn.Linear(4, 3),
        lambda **given: nn.Linear(given["input_shape"][0], given["outputs"]),
        lambda input_shape, *, outputs=1: nn.Linear(*input_shape, outputs),
    ],
)
def test_a_factory_receives_what_its_signature_accepts(factory):
    model = from_module(factory, (4,), 3)
    theta = torch.stack([model.initial(seed) for seed in range(3)])
    x, y = torch.randn(3, 5, 4), torch.tensor([0, 1, 2, 0, 1]).expand(3, 5)
    gradient = vmap(grad(model.objective))(theta, x, y)
    torch.testing.assert_close(gradient[2], grad(model.objective)(theta[2], x[2], y[2]))


def test_further_arguments_reach_the_factory_and_unknown_ones_are_refused():
    assert from_module(network, (4,), 3, arguments={"width": 2}).parameters == 19
    with pytest.raises(InputError, match=r"model\.witdh = 2: must be left out: .*did you mean 'width'"):
        from_module(network, (4,), 3, arguments={"witdh": 2})
    with pytest.raises(InputError, match=r"model\.arguments"):
        from_module(network(3), (4,), 3, arguments={"width": 2})


def test_a_module_given_outright_is_copied_and_starts_every_seed():
    module = network(3)
    model = from_module(module, (4,), 3, name="mine")
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    with torch.no_grad():
        module[0].weight.zero_()
    assert model.name == "mine"
    assert torch.equal(model.initial(0), expected)
    assert torch.equal(model.initial(1), expected)


def test_frozen_parameters_are_no_part_of_theta_but_of_the_scores():
    module = network(3)
    module[0].requires_grad_(False)
    model = from_module(module, (4,), 3)
    x = torch.randn(5, 4)
    assert list(model.shapes) == ["2.weight", "2.bias"]
    torch.testing.assert_close(model.scores(model.initial(0), x), module(x))


def test_shared_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    model = from_module(Tied, (3,), 3)
    assert model.parameters == 9 + 3 + 3
    doubled = torch.cat([2 * torch.eye(3).reshape(-1), torch.zeros(6)])
    assert model.scores(doubled, torch.ones(1, 3)).tolist() == [[4.0, 4.0, 4.0]]


def test_the_loss_follows_the_data_unless_it_is_named():
    assert from_module(network, (4,), 3).loss == "cross_entropy"
    assert from_module(network, (4,), 3, loss="hinge", l2=0.5).l2 == 0.5
    regression = from_module(network, (4,), 1, regression=True)
    assert regression.loss == "squared_error"
    assert not regression.is_linear


@pytest.mark.parametrize(
    ("outputs", "options", "message"),
    [
        (3, {"loss": "squared_error"}, "cross_entropy or hinge for classification"),
        (1, {"loss": "hinge", "regression": True}, "squared_error for regression"),
        (3, {"regression": True}, r"model\.outputs = 3: must be 1"),
        (3, {"loss": "hinges"}, "did you mean 'hinge'"),
        (3, {"l2": -1}, r"model\.l2"),
    ],
)
def test_losses_that_do_not_fit_the_data_are_refused(outputs, options, message):
    with pytest.raises(InputError, match=message):
        from_module(network, (4,), outputs, **options)


@pytest.mark.parametrize(
    ("layer", "kind", "advice"),
    [
        (nn.BatchNorm1d(4), "BatchNorm1d", "GroupNorm or LayerNorm"),
        (nn.SyncBatchNorm(4), "SyncBatchNorm", "GroupNorm or LayerNorm"),
        (nn.BatchNorm2d(4, track_running_stats=False), "BatchNorm2d", "running statistics"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "InstanceNorm1d", "GroupNorm or LayerNorm"),
        (nn.Dropout(0.5), "Dropout", r"weight decay \(model\.l2\)"),
        (nn.AlphaDropout(0.1), "AlphaDropout", "drawn by address"),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.2), "LSTM", r"has dropout = 0.*weight decay"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention", "weight decay"),
        (nn.TransformerEncoderLayer(4, 2), "MultiheadAttention", "weight decay"),
    ],
)
def test_running_statistics_and_random_masks_are_refused_with_advice(layer, kind, advice):
    module = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(InputError, match=rf"model\.factory = '{kind}'.*at '1.*{advice}"):
        from_module(module, (4,), 4)


def test_a_transformer_without_dropout_is_accepted():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = from_module(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2)), (3, 4), 2)
    assert model.scores(model.initial(0), torch.randn(5, 3, 4)).shape == (5, 2)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(functional.dropout(x, 0.5, training=self.training))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)
        self.layer = nn.Linear(4, 3)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Noisy(), "without random numbers in its forward pass"),
        (Counting(), "'calls' changed"),
        (Whole(), r"'numbers' is torch\.int64"),
        (nn.Linear(4, 3, dtype=torch.complex64), r"'weight' is torch\.complex64"),
        (nn.Flatten(), "at least one trainable parameter"),
        (nn.Linear(4, 3).requires_grad_(False), "at least one trainable parameter"),
        (nn.Linear(4, 3, device="meta"), "'weight' is on meta"),
        (nn.Linear(5, 3), r"batch of shape \(2, 4\); its forward pass raised RuntimeError: .*shapes"),
        (nn.Linear(4, 2), r"of shape \(2, 3\) to inputs of shape \(2, 4\); it gave shape \(2, 2\)"),
        (Pair(), "it gave a tuple"),
    ],
)
def test_modules_that_cannot_be_mixed_or_do_not_fit_are_refused(module, message):
    with pytest.raises(InputError, match=message) as error:
        check_module(module, (4,), 3)
    assert (error.value.field, error.value.value) == ("model.factory", type(module).__name__)


def test_lazy_modules_are_refused_before_they_are_given_shapes():
    lazy = nn.Linear(4, 3)
    lazy.weight = nn.UninitializedParameter()
    with pytest.raises(InputError, match="'weight' is uninitialized: use the class without Lazy"):
        check_module(lazy, (4,), 3)


def test_checking_leaves_the_global_generator_alone():
    module = Noisy()
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="random numbers"):
        check_module(module, (4,), 3)
    assert torch.equal(before, torch.get_rng_state())


def test_a_factory_that_draws_from_another_generator_is_refused():
    source = random.Random(0)

    def unrepeatable():
        layer = nn.Linear(4, 3)
        nn.init.constant_(layer.bias, source.random())
        return layer

    with pytest.raises(InputError, match="draws from torch's CPU generator only"):
        from_module(unrepeatable, (4,), 3)


def failing(outputs):
    raise KeyError("no such width")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (failing, "failing.*it raised KeyError: 'no such width'"),
        (lambda: 3, "factory of nn.Module; it returned a int"),
        (3, "an nn.Module or a callable, not a int"),
        (lambda width: nn.Linear(width, 3), "it raised TypeError: .*width"),
    ],
)
def test_factories_that_fail_or_give_no_module_are_refused_with_the_cause(factory, message):
    with pytest.raises(InputError, match=message) as error:
        from_module(factory, (4,), 3)
    assert error.value.field == "model.factory"


def test_a_module_that_does_not_copy_is_refused():
    module = nn.Linear(4, 3)
    module.held = (value for value in [1])
    with pytest.raises(InputError, match="a module that copies; it raised TypeError"):
        from_module(module, (4,), 3)


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "number = 3\n"
        "def network(outputs):\n    return nn.Linear(4, outputs)\n"
        "class Zoo:\n    small = staticmethod(network)\n"
    )
    (tmp_path / "my_broken.py").write_text("raise ValueError('out of order')\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("path", ["my_models:network", "my_models:Zoo.small"])
def test_a_factory_is_found_by_its_name(path):
    assert from_module(load_factory(path), (4,), 3).parameters == 15


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_models", '"package.module:function"'),
        ("my_models:", '"package.module:function"'),
        (":network", '"package.module:function"'),
        ("my models:network", '"package.module:function"'),
        ("my_models:a:b", '"package.module:function"'),
        ("..my_models:network", '"package.module:function"'),
        ("my_modells:network", "ModuleNotFoundError: No module named 'my_modells'.*PYTHONPATH"),
        ("my_broken:network", "importing my_broken raised ValueError: out of order"),
        ("my_models:netwrok", "has no attribute 'netwrok'; did you mean 'network'"),
        ("my_models:number", "a function or class, not a int"),
    ],
)
def test_a_factory_that_cannot_be_found_is_an_input_error(path, message):
    with pytest.raises(InputError, match=message) as error:
        load_factory(path)
    assert (error.value.field, error.value.value) == ("model.factory", path)
