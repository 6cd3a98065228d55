"""The last layer and its loss in one kernel, against plain PyTorch."""

import pytest
import torch

from dspodfl._kernels.cuda import loss_head as head
from dspodfl.problem.models.stacked.network import LOSS_GRADIENTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = {"fp32": 1e-5, "tf32": 3e-3}


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(
    ("loss", "outputs", "features", "batch", "biased"),
    [
        ("cross_entropy", 10, 512, 16, True),
        ("cross_entropy", 7, 33, 5, False),
        ("hinge", 3, 64, 5, True),
        ("squared_error", 1, 100, 40, True),
    ],
)
@pytest.mark.parametrize("indexed", [True, False])
def test_gradients_are_those_of_loss_and_linear_layer(loss, outputs, features, batch, biased, indexed, precision):
    draw = torch.Generator().manual_seed(0)
    clients, size = 4, outputs * features
    weight, bias = 8, 8 + size + 3
    theta = torch.randn(clients + 2, bias + outputs + 5, generator=draw).cuda() / features**0.5
    index = torch.tensor([5, 0, 2, 3], device="cuda") if indexed else None
    x = torch.randn(clients, batch, features, generator=draw).cuda()
    labels = torch.randint(0, outputs, (clients, batch), generator=draw)
    y = (torch.randn(clients, batch, generator=draw) if loss == "squared_error" else labels).cuda()
    out = torch.full((clients, theta.shape[1]), torch.nan, device="cuda")
    grad_x = head.gradient(
        x, y, theta, weight, bias if biased else None, outputs, out,
        loss=loss, l2=0.1, precision=precision, index=index,
    )  # fmt: skip
    owned = (theta if index is None else theta[index])[:clients].double()
    w = owned[:, weight : weight + size].view(clients, outputs, features)
    b = owned[:, bias : bias + outputs]
    scores = x.double() @ w.mT + (b[:, None] if biased else 0.0)
    grad = LOSS_GRADIENTS[loss](scores, y if loss != "squared_error" else y.double())
    expected = [(grad_x, grad @ w), (out[:, weight : weight + size], (grad.mT @ x.double() + 0.1 * w).flatten(1))]
    if biased:
        expected.append((out[:, bias : bias + outputs], grad.sum(dim=1) + 0.1 * b))
    for got, wanted in expected:
        assert float((got.double() - wanted).norm() / wanted.norm()) < TOLERANCE[precision]
    assert out[:, :weight].isnan().all()
