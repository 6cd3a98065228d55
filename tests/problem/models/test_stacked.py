"""Networks of many clients by explicit passes: their gradients and scores are those of the model."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from dspodfl._kernels.cuda import conv
from dspodfl.problem.models import build, from_module
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.problem.models.vgg import Spread

CASES = {
    "svm": ("svm", (1, 4, 3), 3, {}),
    "linear": ("linear", (5,), 1, {"l2": 0.1}),
    "logistic": ("logistic", (5,), 4, {"l2": 0.2}),
    "mlp": ("mlp", (1, 4, 4), 3, {"hidden": [6, 5]}),
    "mlp, regression": ("mlp", (5,), 1, {"hidden": [4], "l2": 0.1}),
    "cnn, odd sides": ("cnn", (1, 7, 7), 3, {"channels": [4, 5]}),
    "cnn, more channels": ("cnn", (2, 9, 14), 3, {"channels": [16, 3], "l2": 0.1}),
    "cnn, regression": ("cnn", (3, 4, 4), 1, {"channels": [4]}),
}


def custom(loss="cross_entropy"):
    """Everything that may stand in a module, in an unusual order."""
    network = nn.Sequential(
        nn.Sequential(nn.MaxPool2d(2), nn.Identity(), nn.Conv2d(2, 6, 3, padding=1, bias=True)),
        nn.MaxPool2d((2, 2), stride=(2, 2)),
        nn.GroupNorm(3, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (3, 3), padding=(1, 1)),
        nn.GroupNorm(2, 4, affine=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Spread(2),
        nn.Flatten(),
        nn.Linear(16, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, 4),
    )
    return from_module(network, (2, 9, 8), 4, loss=loss, l2=0.05)


def drawn(model, clients, batch, *, device="cpu", dtype=torch.float64, seed=0):
    """Parameters (clients, p), inputs and targets."""
    draw = torch.Generator().manual_seed(seed)
    theta = torch.randn(clients, model.parameters, generator=draw, dtype=torch.float64) * 0.3
    x = torch.randn(clients, batch, *model.input_shape, generator=draw, dtype=torch.float64)
    if model.loss == "squared_error":
        y = torch.randn(clients, batch, generator=draw, dtype=torch.float64).to(device, dtype)
    else:
        y = torch.randint(model.outputs, (clients, batch), generator=draw).to(device)
    return theta.to(device, dtype), x.to(device, dtype), y


def gradient(stacked, theta, x, y, index=None):
    """The gradient in θ's own order, after a look at the numbers between the tensors."""
    packed = stacked.pack(theta)
    out = stacked.pack(theta.new_full((len(x), theta.shape[1]), torch.nan))
    stacked.gradient(packed, x, y, out, index)
    found = stacked.unpack(out)
    assert torch.equal(stacked.pack(found), out)
    return found


def test_all_columns_are_said_to_be_ready_once_and_the_last_layers_first():
    for model in (build("vgg11", (3, 32, 32), 10, norm="group"), build("cnn", (1, 8, 8), 3), build("mlp", (5,), 3)):
        stacked = Stacked.of(model)
        theta, x, y = drawn(model, 2, 2)
        heard = []
        out = stacked.pack(torch.zeros_like(theta))
        stacked.gradient(stacked.pack(theta), x, y, out, ready=lambda *columns, heard=heard: heard.append(columns))
        assert [first for first, _ in heard] == [last for _, last in heard[1:]] + [0]
        assert heard[0][1] == stacked.width


def check(model, clients=3, batch=2):
    stacked = Stacked.of(model)
    theta, x, y = drawn(model, clients, batch)
    for index in (None, torch.tensor([2, 0, 0])[:clients]):
        wanted = vmap(grad(model.objective))(theta if index is None else theta[index], x, y)
        torch.testing.assert_close(gradient(stacked, theta, x, y, index), wanted, rtol=1e-10, atol=1e-12)
    wanted = torch.stack([model.scores(one, x[0]) for one in theta])
    torch.testing.assert_close(stacked.scores(stacked.pack(theta), x[0]), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_named_model_has_the_gradients_and_scores_of_its_module(case):
    name, shape, outputs, params = case
    check(build(name, shape, outputs, **params))


@pytest.mark.parametrize("loss", ["cross_entropy", "hinge"])
def test_a_module_of_known_layers_has_the_gradients_and_scores_of_its_module(loss):
    check(custom(loss))


@pytest.mark.parametrize("norm", ["none", "group"])
def test_vgg11_has_the_gradients_and_scores_of_its_module(norm):
    model = build("vgg11", (3, 32, 32), 10, norm=norm)
    stacked = Stacked.of(model)
    theta, x, y = drawn(model, 1, 2)
    theta = torch.stack([model.initial(0)]).double()
    wanted = vmap(grad(model.objective))(theta, x, y)
    torch.testing.assert_close(gradient(stacked, theta, x, y), wanted, rtol=1e-8, atol=1e-12)


def test_vgg11_with_the_head_of_imagenet_is_known():
    stacked = Stacked.of(build("vgg11", (3, 32, 32), 10, head="imagenet"))
    assert stacked is not None and stacked.width >= stacked.model.parameters
    assert (
        Stacked.of(build("vgg11", (3, 64, 64), 10, head="imagenet")) is None
    )  # adaptive pooling of larger out_channels


def test_packing_permutes_and_pads_with_zeros():
    model = build("cnn", (2, 6, 6), 3, channels=[5])
    stacked = Stacked.of(model)
    theta = torch.randn(4, model.parameters)
    packed = stacked.pack(theta)
    assert packed.shape == (4, stacked.width) and stacked.width % 32 == 0
    assert torch.equal(stacked.unpack(packed), theta)
    torch.testing.assert_close(packed.square().sum(1), theta.square().sum(1))
    weight = model.unflatten(theta)["conv0.weight"]
    assert torch.equal(packed[:, :90].view(4, 5, 3, 3, 2), weight.permute(0, 1, 3, 4, 2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 5, padding=2),
        nn.Conv2d(2, 2, 3),
        nn.Conv2d(2, 2, 3, padding=1, groups=2),
        nn.Conv2d(2, 2, 3, padding=1, bias=False),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Tanh(),
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(0),
        nn.Linear(4, 4),
        nn.AvgPool2d(2),
    ],
)
def test_another_layer_is_not_known(layer):
    model = build("mlp", (2, 4, 4), 3)
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 3))
    assert Stacked.of(type(model)("custom", module, "cross_entropy", (2, 4, 4), 3)) is None


def test_constants_and_shared_layers_are_not_known():
    shared = nn.Linear(4, 4)
    twice = nn.Sequential(shared, nn.ReLU(), shared)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    frozen[0].weight.requires_grad_(False)
    hooked = nn.Sequential(nn.Linear(4, 4))
    hooked[0].register_forward_hook(lambda module, inputs, output: output)
    for module in (twice, frozen, hooked):
        assert Stacked.of(from_module(module, (4,), 4)) is None


def test_scores_in_chunks_are_the_scores(monkeypatch):
    model = build("cnn", (1, 6, 6), 3, channels=[4])
    stacked = Stacked.of(model)
    theta, x, _ = drawn(model, 3, 7)
    whole = stacked.scores(stacked.pack(theta), x[0])
    monkeypatch.setattr("dspodfl.problem.models.stacked.network._MAX_ACTIVATION_BYTES", 20_000)
    torch.testing.assert_close(stacked.scores(stacked.pack(theta), x[0]), whole, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["cnn", "custom", "vgg11"])
class TestOnCuda:
    def model(self, name):
        if name == "custom":
            return custom()
        return build(name, (3, 32, 32), 10, l2=0.01, **({"channels": [16, 32]} if name == "cnn" else {}))

    def inputs(self, name):
        model = self.model(name)
        theta, x, y = drawn(model, 4, 8, device="cuda", dtype=torch.float32)
        if name == "vgg11":
            theta = torch.stack([model.initial(seed) for seed in range(4)]).cuda()
        return model, theta, x, y

    def test_gradients_and_scores_are_those_in_double_precision(self, name, precision):
        model, theta, x, y = self.inputs(name)
        stacked, exact = Stacked.of(model, precision), Stacked.of(model)
        # A ReLU or a maximum that falls otherwise moves more than rounding does, and the more layers, the more of them.
        most = {"fp32": 5e-3, "tf32": 0.1, "bf16": 0.4}[precision]
        for index in (None, torch.tensor([3, 1, 1], device="cuda")):
            some = slice(None) if index is None else slice(3)
            ours = gradient(stacked, theta, x[some], y[some], index)
            theirs = gradient(exact, theta.double(), x[some].double(), y[some], index)
            assert (ours - theirs).norm() < most * theirs.norm()
        ours, theirs = (
            stacked.scores(stacked.pack(theta), x[0]),
            exact.scores(exact.pack(theta.double()), x[0].double()),
        )
        assert (ours - theirs).norm() < {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}[precision] * theirs.norm()

    def test_twice_and_in_a_graph_it_is_the_same_bit_by_bit(self, name, precision):
        model, theta, x, y = self.inputs(name)
        stacked = Stacked.of(model, precision)
        packed, index = stacked.pack(theta), torch.tensor([3, 1, 1, 0], device="cuda")
        empty = stacked.pack(torch.full_like(theta, torch.nan))
        outs = [empty.clone() for _ in range(3)]
        for out in outs[:2]:
            stacked.gradient(packed, x, y, out, index)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stacked.gradient(packed, x, y, outs[2], index)
        outs[2].copy_(empty)
        graph.replay()
        torch.cuda.synchronize()
        assert conv.available("cuda")
        assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
