"""GPU kernels on a CPU, in a process with TRITON_INTERPRET=1: each against plain code.

``python -m tests._kernels.interpreted`` prints a line of JSON: the name of each check, and what is wrong ("": nothing).
Triton decides when a kernel is defined whether it is interpreted, so that this needs a process of its own.
"""

from __future__ import annotations

import json
import sys
import traceback

import numpy as np
import torch
from torch.nn import functional

from dspodfl import rng
from dspodfl._kernels import philox
from dspodfl._kernels.cuda import conv, linear, minibatch, mixing, ordered_sum
from dspodfl.problem.models import build
from dspodfl.problem.models.linear import linear_gradient

NOW = torch.tensor([1])
EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 4]])  # of five clients; client 3 has none


def matrix(active):
    """P of one iteration, from the weights of the links that are used."""
    p = torch.eye(5, dtype=active.dtype)
    for (i, j), w in zip(EDGES, active, strict=True):
        p[i, j] = p[j, i] = w
        p[i, i], p[j, j] = p[i, i] - w, p[j, j] - w
    return p


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def words_are_those_of_the_address():
    random = np.random.default_rng(0)
    seed, i, j = random.integers(0, 2**63 - 1, 40), random.integers(0, 2**31, 40), random.integers(0, 2**31, 40)
    k = random.integers(0, 2**31, (3, 1))
    inputs = np.broadcast_arrays(seed[None], i[None], j[None], k)
    got = philox.words(*(torch.from_numpy(a.copy()) for a in inputs), int(rng.Stream.LINK), 6, 8)
    assert np.array_equal(got.numpy(), rng.words(seed, rng.Stream.LINK, i, j, k, slots=6, first=8))


def sums_are_in_order():
    values = torch.from_numpy(np.random.default_rng(0).lognormal(0, 5, size=(7, 150)))
    total, expected = values[0].clone(), []
    for row in values:
        total = total + row
        expected.append(total)
    assert torch.equal(ordered_sum.running(values[0].clone(), values), torch.stack(expected))
    assert torch.equal(ordered_sum.fold(values), torch.cumsum(values, dim=1)[:, -1])


def mixing_is_the_product_with_p():
    """By runs; the interpreter does not take the masks by which `mix_rows` skips a link."""
    p, theta, moved = matrix(torch.tensor([0.3, 0.0, 0.25, 0.4])), drawn(5, 600), drawn(5, 600, seed=1)
    step = torch.tensor([[0.0] * 5, [0.1, 0.0, 0.2, 0.3, 0.0]])
    fires = (step[1] != 0)[:, None]
    out = torch.where(fires, moved, torch.nan)
    mixing.mix_runs(theta, out, torch.stack([torch.eye(5), p])[:, None], NOW, step)
    torch.testing.assert_close(out, p @ theta + torch.where(fires, moved, 0.0), rtol=0, atol=1e-5)


def steps_touch_their_rows_and_columns_alone():
    out, gradient = drawn(12, 300), drawn(4, 300, seed=1)
    row_index = torch.tensor([[0] * 6, [6, 7, 8, 9, 10, 11], [6, 1, 2, 9, 4, 5]]).int()
    step = torch.tensor([[0.0] * 6, [0.5, 0.0, 2.0, 0.0, 1.0, 0.25]])
    who, expected = torch.tensor([4, 0, 3, 2]), out.clone()
    expected[row_index[2, who].long(), 64:200] -= step[1, who, None] * gradient[:, 64:200]
    mixing.less(out, gradient, who, step, row_index, NOW, 64, 200)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


def minibatches_are_normalized_samples():
    x = torch.randint(0, 256, (20, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y, rows = torch.arange(20) % 4, torch.randint(0, 20, (2, 3, 4), dtype=torch.int32)
    batch_of, order = torch.tensor([0, 1, 2, 1]), torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]])
    row_index = torch.tensor([[0, 1, 2, 3], [4, 1, 6, 3]], dtype=torch.int32)
    who, model_row, images, labels = minibatch.minibatch(x, y, 1 / 255, -0.3, batch_of, order, rows, row_index, NOW, 3)
    mine = rows[1][batch_of[who]].long()
    assert who.tolist() == [3, 1, 0] and model_row.tolist() == [3, 1, 4] and torch.equal(labels, y[mine])
    torch.testing.assert_close(images, x[mine].float() / 255 - 0.3, rtol=0, atol=1e-6)


def steps_of_linear_models_are_their_gradients():
    for name, outputs, l2 in (("svm", 3, 0.1), ("logistic", 4, 0.05), ("linear", 1, 0.2)):
        model = build(name, (6,), outputs, l2=l2)
        bias = len(model.shapes) > 1
        x, theta = drawn(30, 6), torch.zeros(4, outputs, 8)
        theta[:, :, : 6 + bias] = 0.3 * drawn(4, outputs, 6 + bias, seed=1)
        y = drawn(30, seed=2) if name == "linear" else torch.arange(30) % outputs
        rows, batch_of = torch.arange(2 * 3 * 5, dtype=torch.int32).view(2, 3, 5) % 30, torch.tensor([0, 1, 2, 1])
        step = torch.tensor([[0.0] * 4, [0.5, 0.0, 1.0, 0.25]])
        flat = theta.view(4, -1)
        out = torch.full_like(flat, torch.nan)
        steps = linear.Steps(x, y, 1.0, 0.0, batch_of, outputs, 8, bias, model.loss, l2, "fp32")
        steps.move(flat, out, rows, step, NOW)
        inputs, mine = torch.zeros(4, 5, 8, dtype=torch.float64), rows[1][batch_of].long()
        inputs[..., :6] = x[mine].double()
        inputs[..., 6] = float(bias)
        share, target = torch.tensor(0.2, dtype=torch.float64), y[mine].double() if name == "linear" else y[mine]
        expected = -linear_gradient(model, flat.double(), inputs, target, share, step[1].double())
        assert out[1].isnan().all()
        torch.testing.assert_close(out[step[1] != 0].double(), expected[step[1] != 0], rtol=0, atol=1e-5)


def convolutions_are_pytorchs():
    clients, channels, out_channels = 2, 3, 8
    theta, x = drawn(clients, 32 + 9 * channels * out_channels), drawn(clients, 2, 6, 5, channels, seed=1)
    assert conv.available("cpu")
    out, _ = conv.forward(x, theta, 32, 0, out_channels, relu=True)
    weights = theta[:, 32:].view(-1, out_channels, 3, 3, channels).permute(0, 1, 4, 2, 3)
    each = zip(x.permute(0, 1, 4, 2, 3), weights, theta[:, :out_channels], strict=True)
    expected = torch.stack([functional.relu(functional.conv2d(*three, padding=1)) for three in each])
    torch.testing.assert_close(out.permute(0, 1, 4, 2, 3), expected, rtol=0, atol=1e-4)


CHECKS = [
    words_are_those_of_the_address,
    sums_are_in_order,
    mixing_is_the_product_with_p,
    steps_touch_their_rows_and_columns_alone,
    minibatches_are_normalized_samples,
    steps_of_linear_models_are_their_gradients,
    convolutions_are_pytorchs,
]


def main():
    """Run every check and print what is wrong."""
    found = {}
    for check in CHECKS:
        try:
            check()
            found[check.__name__] = ""
        except Exception:  # every check is run; what is wrong is printed
            found[check.__name__] = traceback.format_exc(limit=-3)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
