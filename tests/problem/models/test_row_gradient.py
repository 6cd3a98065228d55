"""The gradient of one minibatch is that of autograd, to the bit."""

import pytest
import torch

from dspodfl.problem.models import build, row_gradient

SHAPES = [((6,), 3, 4), ((1, 28, 28), 10, 16), ((3,), 2, 1), ((5,), 7, 1), ((1, 9, 9), 2, 33), ((64,), 10, 200)]
"""(input shape, outputs, batch)."""


def by_autograd(model, theta, x, y):
    point = theta.clone().requires_grad_()
    return torch.autograd.grad(model.objective(point, x, y), point)[0]


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["svm", "logistic", "linear", "mlp"])
def test_it_is_autograd_s_to_the_bit(name, dtype, l2):
    random = torch.Generator().manual_seed(3)
    for shape, outputs, batch in SHAPES:
        model = build(name, shape, 1 if name == "linear" else outputs, l2=l2)
        gradient, moved = row_gradient(model), 0
        for _ in range(5):
            theta = torch.randn(model.parameters, generator=random, dtype=dtype)
            x = torch.randn(batch, *shape, generator=random, dtype=dtype)
            y = torch.randint(0, outputs, (batch,), generator=random)
            y = y.to(dtype) if name == "linear" else y
            found = gradient(theta, x, y)
            assert torch.equal(found, by_autograd(model, theta, x, y))
            moved += bool(found.any())
        assert moved


def test_a_score_at_the_kink_of_the_hinge_has_no_gradient():
    model = build("svm", (2,), 2)
    theta, x, y = torch.zeros(6), torch.ones(1, 2), torch.tensor([0])
    theta[4] = 1.0  # the margin is 1 − 1 + 0 = 0
    assert torch.equal(row_gradient(model)(theta, x, y), by_autograd(model, theta, x, y))
    assert not row_gradient(model)(theta, x, y).any()
