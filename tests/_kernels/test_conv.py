"""Convolutions of many clients: reference implementations equal PyTorch's operations, kernels equal them."""

from itertools import product

import pytest
import torch
from torch.nn import functional

from dspodfl._kernels.cuda import conv, conv_reference
from dspodfl._kernels.cuda import tiling as cuts
from dspodfl._kernels.cuda.conv import Gate

SHAPES = [(2, 2, 6, 5, 3, 8), (3, 1, 7, 7, 16, 24), (1, 3, 2, 2, 5, 7)]
"""(clients, images, height, width, channels, out_channels)"""
TOLERANCE = {"fp32": 1e-5, "tf32": 3e-3, "bf16": 2e-2}


class Case:
    """Inputs, parameters in rows with something before and behind them, and gradients of the pre-activations."""

    def __init__(self, shape, *, indexed=False, device="cpu", dtype=torch.float64, stored=None, seed=0):
        clients, images, height, width, channels, out_channels = shape
        draw = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=draw, dtype=torch.float64).to(device, dtype)

        self.out_channels, self.channels = out_channels, channels
        self.bias, self.weight = 32, 32 + -(-out_channels // 32) * 32
        self.width = self.weight + 9 * channels * out_channels + 32
        self.theta = normal(clients + 2 if indexed else clients, self.width) / (9 * channels) ** 0.5
        self.index = torch.arange(clients, device=device).flip(0) + 2 if indexed else None
        self.x = normal(clients, images, height, width, channels).to(stored or dtype)
        self.grad = normal(clients, images, height, width, out_channels).to(stored or dtype)
        self.out = torch.full((clients, self.width), torch.nan, dtype=dtype, device=device)

    def parameters(self):
        """Weights in PyTorch's order (clients, out_channels, channels, 3, 3) and biases (clients, out_channels)."""
        theta = self.theta if self.index is None else self.theta[self.index]
        weights = theta[:, self.weight : self.weight + 9 * self.channels * self.out_channels]
        weights = weights.view(-1, self.out_channels, 3, 3, self.channels).permute(0, 1, 4, 2, 3)
        return weights, theta[:, self.bias : self.bias + self.out_channels]


def images_first(x):
    return x.permute(0, 1, 4, 2, 3)


def channels_last(x):
    return x.permute(0, 1, 3, 4, 2)


def expected(case, relu, pool):
    """Outputs by PyTorch, with the graph behind them."""
    weights, biases = (p.detach().clone().requires_grad_() for p in case.parameters())
    x = images_first(case.x).detach().clone().requires_grad_()
    sums = torch.stack([functional.conv2d(*three, padding=1) for three in zip(x, weights, biases, strict=True)])
    out = functional.relu(sums) if relu else sums
    if pool:
        out = functional.max_pool2d(out.flatten(0, 1), 2).unflatten(0, out.shape[:2])
    return x, weights, biases, sums, out


def distance(ours, theirs):
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(("relu", "pool"), list(product([False, True], repeat=2)))
def test_the_way_forward_is_pytorchs(shape, indexed, relu, pool):
    case = Case(shape, indexed=indexed)
    *_, wanted = expected(case, relu, pool)
    where = (case.weight, case.bias, case.out_channels)
    for x in (case.x, channels_last(images_first(case.x).contiguous())):
        out, code = conv_reference.forward_reference(x, case.theta, *where, relu=relu, pool=pool, index=case.index)
        torch.testing.assert_close(images_first(out), wanted.detach(), rtol=0, atol=1e-12)
        assert (code is not None) == pool


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("indexed", [False, True])
def test_the_way_back_is_pytorchs(shape, indexed):
    case = Case(shape, indexed=indexed)
    x, weights, biases, sums, _ = expected(case, False, False)
    by_x, by_weights, by_biases = torch.autograd.grad(sums, (x, weights, biases), images_first(case.grad))
    found = conv_reference.input_gradient_reference(case.grad, case.theta, case.weight, case.channels, index=case.index)
    torch.testing.assert_close(images_first(found), by_x, rtol=0, atol=1e-12)
    for l2 in (0.0, 0.3):
        conv_reference.weight_gradient_reference(
            case.x, case.grad, case.out, case.weight, case.bias, theta=case.theta, l2=l2, index=case.index
        )
        ours = case.out[:, case.weight : case.weight + by_weights[0].numel()].view(
            -1, case.out_channels, 3, 3, case.channels
        )
        theirs = by_weights + l2 * weights.detach()
        torch.testing.assert_close(ours.permute(0, 1, 4, 2, 3), theirs, rtol=0, atol=1e-12)
        ours = case.out[:, case.bias : case.bias + case.out_channels]
        torch.testing.assert_close(ours, by_biases + l2 * biases.detach(), rtol=0, atol=1e-12)
    assert case.out[:, : case.bias].isnan().all() and case.out[:, -32:].isnan().all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("relu", "pool"), list(product([False, True], repeat=2)))
def test_a_gate_leads_back_through_relu_and_pooling(shape, relu, pool):
    case = Case(shape)
    *_, sums, wanted = expected(case, relu, pool)
    out, code = conv_reference.forward_reference(
        case.x, case.theta, case.weight, case.bias, case.out_channels, relu=relu, pool=pool, index=case.index
    )
    gate = Gate(code=code, height=shape[2], width=shape[3]) if pool else Gate(output=out if relu else None)
    grad = torch.randn_like(out)
    (by_sums,) = torch.autograd.grad(wanted, sums, images_first(grad))
    torch.testing.assert_close(images_first(conv.through(grad, gate)), by_sums, rtol=0, atol=1e-12)


def test_of_equal_maxima_the_first_in_scan_order_has_the_gradient():
    x = torch.tensor([[1.0, 2.0, 2.0], [2.0, 0.0, 9.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    x = x.view(1, 1, 3, 3, 1)
    out, code = conv.max_pool(x)
    assert out.flatten().tolist() == [2.0] and code.flatten().tolist() == [1]
    backward = conv.max_pool_gradient(torch.ones_like(out), code, 3, 3)
    assert backward.flatten().nonzero().flatten().tolist() == [1]


def test_nan_is_not_lost_in_pooling():
    x = torch.zeros(1, 1, 2, 2, 1, dtype=torch.float64)
    x[0, 0, 1, 0] = torch.nan
    out, code = conv.max_pool(x)
    assert out.isnan().all() and code.item() == 2


def test_bf16_stores_activations_in_half_the_space_and_parameters_as_they_are():
    case = Case(SHAPES[0], dtype=torch.float32)
    exact, _ = conv_reference.forward_reference(case.x, case.theta, case.weight, case.bias, case.out_channels)
    rough, _ = conv_reference.forward_reference(
        case.x, case.theta, case.weight, case.bias, case.out_channels, precision="bf16"
    )
    assert rough.dtype == torch.bfloat16 and 0 < distance(rough, exact) < TOLERANCE["bf16"]


def test_the_kernels_are_for_float32_on_a_gpu():
    assert not conv.available("cpu") or conv._interpreted()
    assert not conv.available("cpu", torch.float64)


GPU_SHAPES = [*SHAPES[:2], (3, 4, 16, 16, 64, 128), (10, 16, 2, 2, 64, 64)]


def on_cuda(shape, precision, indexed=False):
    return Case(
        shape, indexed=indexed, device="cuda", dtype=torch.float32, stored=conv.stored(precision, torch.float32)
    )


@pytest.fixture
def exact_products():
    """The products of the reference implementations in full float32, whatever the setting was."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("shape", GPU_SHAPES)
class TestKernels:
    @pytest.mark.parametrize(
        ("raw", "relu", "pool", "indexed"),
        [(False, True, True, False), (True, True, False, False), (False, False, False, True)],
    )
    def test_forward_is_its_reference(self, shape, precision, raw, relu, pool, indexed):
        case = on_cuda(shape, precision, indexed)
        x = channels_last(images_first(case.x).float().contiguous()) if raw else case.x
        settings = {"relu": relu, "pool": pool, "precision": precision, "index": case.index}
        ours, code = conv.forward(x, case.theta, case.weight, case.bias, case.out_channels, **settings)
        theirs, wanted = conv_reference.forward_reference(
            x, case.theta, case.weight, case.bias, case.out_channels, **settings
        )
        assert ours.dtype == theirs.dtype and distance(ours, theirs) < TOLERANCE[precision]
        if pool:
            assert (code != wanted).float().mean() <= (0.001 if precision == "fp32" else 0.02)

    @pytest.mark.parametrize("kind", ["none", "relu", "pool"])
    def test_the_backward_pass_to_inputs_is_its_reference(self, shape, precision, kind):
        case = on_cuda(shape, precision, indexed=kind == "none")
        code = torch.randint(0, 5, case.x.shape, dtype=torch.int8, device="cuda")
        gate = {
            "none": None,
            "relu": Gate(output=torch.relu(case.x)),
            "pool": Gate(code=code, height=2 * shape[2] + 1, width=2 * shape[3]),
        }[kind]
        settings = {"gate": gate, "precision": precision, "index": case.index}
        ours = conv.input_gradient(case.grad, case.theta, case.weight, case.channels, **settings)
        theirs = conv_reference.input_gradient_reference(case.grad, case.theta, case.weight, case.channels, **settings)
        assert ours.dtype == theirs.dtype and distance(ours, theirs) < TOLERANCE[precision]
        if gate is not None:
            assert torch.equal(conv.through(case.x, gate), conv_reference.through_reference(case.x, gate))

    @pytest.mark.parametrize(("raw", "l2", "indexed"), [(False, 0.0, False), (True, 0.3, True)])
    def test_the_backward_pass_to_weights_is_its_reference(self, shape, precision, raw, l2, indexed):
        case = on_cuda(shape, precision, indexed)
        x = channels_last(images_first(case.x).float().contiguous()) if raw else case.x
        ours, theirs = case.out.clone(), case.out.clone()
        settings = {"theta": case.theta, "l2": l2, "precision": precision, "index": case.index}
        conv.weight_gradient(x, case.grad, ours, case.weight, case.bias, **settings)
        conv_reference.weight_gradient_reference(x, case.grad, theirs, case.weight, case.bias, **settings)
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert distance(ours.nan_to_num(), theirs.nan_to_num()) < TOLERANCE[precision]

    def test_pooling_is_its_reference(self, shape, precision):
        case = on_cuda(shape, precision)
        ties = (4 * case.x).round().contiguous()
        for ours, theirs in zip(conv.max_pool(ties), conv_reference.max_pool_reference(ties), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("shape", [(3, 4, 16, 16, 64, 128), (2, 4, 8, 8, 128, 256), (2, 5, 8, 8, 256, 256)])
@pytest.mark.parametrize(("relu", "pool"), [(True, True), (False, False)])
def test_the_blocks_of_large_stacks_give_the_same(shape, relu, pool, monkeypatch):
    monkeypatch.setattr(cuts, "_PLENTY", 0)
    case = on_cuda(shape, "tf32")
    settings = {"relu": relu, "pool": pool, "precision": "tf32"}
    ours, _ = conv.forward(case.x, case.theta, case.weight, case.bias, case.out_channels, **settings)
    theirs, _ = conv_reference.forward_reference(
        case.x, case.theta, case.weight, case.bias, case.out_channels, **settings
    )
    assert distance(ours, theirs) < TOLERANCE["tf32"]
    code = torch.randint(0, 5, case.x.shape, dtype=torch.int8, device="cuda")
    gate = Gate(code=code, height=2 * shape[2], width=2 * shape[3]) if pool else None
    where = (case.grad, case.theta, case.weight, case.channels)
    ours = conv.input_gradient(*where, gate=gate, precision="tf32")
    theirs = conv_reference.input_gradient_reference(*where, gate=gate, precision="tf32")
    assert distance(ours, theirs) < TOLERANCE["tf32"]
