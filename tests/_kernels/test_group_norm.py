"""Group normalization of many clients: reference implementations equal PyTorch's operations, kernels equal them."""

import pytest
import torch
from torch.nn import functional

from dspodfl._kernels.cuda import group_norm as norm
from dspodfl._kernels.cuda.group_norm import Groups

SHAPES = [(3, 2, 5, 4, 8, 4), (2, 3, 8, 8, 64, 32), (3, 1, 4, 6, 6, 3), (1, 2, 3, 3, 12, 3), (2, 2, 2, 2, 24, 3)]
"""(clients, images, height, width, channels, groups)"""
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 2e-2}


def case(shape, indexed=True, affine=True, device="cpu", dtype=torch.float64, stored=None):
    """Inputs and grads, parameters in rows of their own, whose row is whose, and how they are normalized."""
    clients, images, height, width, channels, groups = shape
    draw = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(clients, images, height, width, channels, generator=draw, dtype=dtype) for _ in range(2))
    theta = torch.randn(clients + 2, 3 * channels + 10, generator=draw, dtype=dtype).to(device)
    index = torch.arange(clients, device=device).flip(0) + 2 if indexed else None
    offsets = (10 + channels, 5) if affine else (None, None)
    x, grad = (value.to(device, stored or dtype) for value in (2 * x + 1, grad))
    return x, grad, theta if indexed else theta[:clients], index, Groups(groups, 1e-5, *offsets)


def images_first(x):
    return x.permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("relu", "pool"), [(False, False), (True, False), (True, True), (False, True)])
def test_the_references_are_pytorchs_group_normalization(shape, affine, relu, pool):
    x, grad, theta, index, groups = case(shape, affine=affine)
    channels = x.shape[4]
    owned = theta[index]
    weight, bias = (
        (
            owned[:, at : at + channels].clone() if affine else torch.full_like(owned[:, :channels], fill)
        ).requires_grad_()
        for at, fill in ((groups.weight, 1.0), (groups.bias, 0.0))
    )
    inputs = images_first(x).clone().requires_grad_()
    each = zip(inputs, weight, bias, strict=True)
    plain = torch.stack([functional.group_norm(a, groups.count, w, b, groups.eps) for a, w, b in each])
    expected = torch.relu(plain) if relu else plain
    if pool:
        expected = functional.max_pool2d(expected.flatten(0, 1), 2).unflatten(0, expected.shape[:2])
    out, code, stats = norm.forward_reference(x, theta, groups, relu=relu, pool=pool, index=index)
    assert torch.allclose(images_first(out), expected)
    assert (code is not None) == pool
    plain.backward(images_first(grad))
    back, sums = norm.backward_reference(grad, x, stats, theta, groups, index=index)
    assert torch.allclose(images_first(back), inputs.grad)
    assert torch.allclose(sums.sum(dim=1), torch.stack([bias.grad, weight.grad], dim=1))
    none, same = norm.backward_reference(grad, x, stats, theta, groups, inputs=False, index=index)
    assert none is None and torch.equal(same, sums)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("shape", [*SHAPES, (4, 16, 32, 32, 64, 32), (2, 3, 4, 4, 512, 32)])
@pytest.mark.parametrize(("relu", "pool"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("indexed", [True, False])
def test_the_kernels_are_the_references(shape, relu, pool, indexed, precision):
    stored = torch.bfloat16 if precision == "bf16" else torch.float32
    x, grad, theta, index, groups = case(shape, indexed, device="cuda", dtype=torch.float32, stored=stored)
    assert norm.available(x, theta, groups)
    how = {"precision": precision, "index": index}
    out, code, stats = norm.forward(x, theta, groups, relu=relu, pool=pool, **how)
    reference, its_code, its_stats = norm.forward_reference(x, theta, groups, relu=relu, pool=pool, **how)

    def near(a, b):
        return float((a.double() - b.double()).norm() / b.double().norm()) < TOLERANCE[precision]

    assert near(out, reference)
    assert near(stats, its_stats)
    if pool:
        assert (code == its_code).double().mean() > 0.99  # values next to each other may be one
    back, sums = norm.backward(grad, x, stats, theta, groups, **how)
    its_back, its_sums = norm.backward_reference(grad, x, stats, theta, groups, **how)
    assert near(back, its_back) and near(sums, its_sums)
    none, same = norm.backward(grad, x, stats, theta, groups, inputs=False, **how)
    assert none is None and torch.equal(same, sums)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("channels", "groups"), [(6, Groups(2, 1e-5, 0, 32)), (8, Groups(4, 1e-5, 0, None)), (256, Groups(2, 1e-5, 0, 256))]
)
def test_groups_that_the_kernels_do_not_take_have_the_references(channels, groups):
    """Three channels a group; a scale without a shift; more channels than a program takes."""
    x, theta = torch.randn(2, 1, 2, 2, channels, device="cuda"), torch.randn(2, 512, device="cuda")
    assert not norm.available(x, theta, groups)
    assert torch.equal(norm.forward(x, theta, groups)[0], norm.forward_reference(x, theta, groups)[0])
