"""Triton kernels on a GPU, each against its reference implementation."""

import numpy as np
import pytest
import torch
from tests.worlds import classified, erdos_renyi, make_run

from dspodfl import rng
from dspodfl._kernels import philox
from dspodfl._kernels.cuda import linear, mixing
from dspodfl._kernels.cuda import ordered_sum as sums
from dspodfl.engine import Stack
from dspodfl.engine import counters as ledger
from dspodfl.engine.mixer import Matrices
from dspodfl.network.weights import matrix
from dspodfl.problem.models import build
from dspodfl.problem.models.linear import linear_gradient
from dspodfl.rng import Stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CLOSE = {"fp32": 1e-5, "tf32": 3e-3, "bf16": 2e-2}


def stacked(sizes, iterations=3, p=0.5):
    """A stack, its events, and P of every iteration as one matrix of all clients."""
    data = classified(samples=1000)
    stack = Stack([make_run(seed=seed, data=data, graph=erdos_renyi(n, seed, p=p)) for seed, n in enumerate(sizes)])
    (block,) = stack.blocks(iterations, iterations, "cuda", torch.float32)
    whole = torch.stack([torch.from_numpy(matrix(stack.clients, stack.edges, a)) for a in block.active.cpu().numpy()])
    return stack, block, whole.float().cuda()


def at(t):
    return torch.tensor([t], device="cuda")


@pytest.mark.parametrize("sizes", [[5, 5, 5], [3, 8, 1], [200]])
@pytest.mark.parametrize("width", [1, 7, 1024, 5000])
@pytest.mark.parametrize("stepping", [False, True])
def test_mixing_by_rows_is_the_product_with_p(sizes, width, stepping):
    stack, block, p = stacked(sizes)
    links = mixing.Links.of(stack.neighbours, torch.device("cuda"))
    theta, moved = (torch.randn(stack.clients, width, device="cuda") for _ in range(2))
    for t in range(3):
        fires = block.step[t] != 0
        out = torch.where(fires[:, None], moved, torch.nan)
        mixing.mix_rows(theta, out, links, block.active, at(t), block.step if stepping else None)
        expected = p[t] @ theta + (torch.where(fires[:, None], moved, 0.0) if stepping else 0.0)
        assert torch.allclose(out, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [1, 5, 16])
@pytest.mark.parametrize("stepping", [False, True])
def test_mixing_by_runs_is_the_product_with_p(n, stepping):
    stack, block, p = stacked([n] * 4)
    theta, moved = (torch.randn(stack.clients, 3000, device="cuda") for _ in range(2))
    dense = Matrices(stack, torch.device("cuda"))(block.active)
    for t in range(3):
        fires = block.step[t] != 0
        out = torch.where(fires[:, None], moved, torch.nan)
        mixing.mix_runs(theta, out, dense, at(t), block.step if stepping else None)
        expected = p[t] @ theta + (torch.where(fires[:, None], moved, 0.0) if stepping else 0.0)
        assert torch.allclose(out, expected, rtol=0, atol=1e-5)


def row_index_width(stack, block):
    """Homes of three iterations: half of the clients begin in their second rows, and whoever mixes changes rows."""
    n = stack.clients
    mixes = torch.zeros(3, n, dtype=torch.bool, device="cuda")
    for t in range(3):
        mixes[t, torch.from_numpy(stack.edges).cuda()[block.v_hat[t]].flatten()] = True
    row_index = [torch.arange(n, device="cuda") + n * (torch.arange(n, device="cuda") % 2)]
    for t in range(3):
        row_index.append(torch.where(mixes[t], (row_index[t] + n) % (2 * n), row_index[t]))
    return torch.stack(row_index).int(), mixes


@pytest.mark.parametrize("sizes", [[5, 5, 5], [16] * 3, [3, 8, 1], [200]])
def test_models_that_mix_go_to_their_other_rows_and_the_others_are_not_touched(sizes):
    stack, block, p = stacked(sizes)
    n, device = stack.clients, torch.device("cuda")
    row_index, mixes = row_index_width(stack, block)
    links, width = mixing.Links.of(stack.neighbours, device), 3000
    uniform = len(set(sizes)) == 1 and sizes[0] <= mixing.SMALL
    for t in range(3):
        assert mixes[t].any()
        theta = torch.randn(n, width, device="cuda")
        both = torch.full((2 * n, width), torch.nan, device="cuda")
        both[row_index[t]] = theta
        both[row_index[t][~mixes[t]], 5] = torch.nan  # whoever does not mix is not read, either
        expected = both.clone()
        expected[row_index[t + 1][mixes[t]]] = (p[t] @ theta)[mixes[t]]
        by_rows = both.clone()
        mixing.mix_rows(by_rows, by_rows, links, block.active, at(t), row_index=row_index)
        assert torch.allclose(by_rows, expected, rtol=0, atol=1e-5, equal_nan=True)
        if uniform:
            dense = Matrices(stack, device)(block.active)
            mixing.mix_runs(both, both, dense, at(t), row_index=row_index)
            assert torch.allclose(both, expected, rtol=0, atol=1e-5, equal_nan=True)


def test_what_does_not_fire_is_not_read():
    stack, block, _ = stacked([200], p=0.05)
    links = mixing.Links.of(stack.neighbours, torch.device("cuda"))
    quiet = torch.zeros_like(block.active)
    theta = torch.full((200, 300), torch.nan, device="cuda")
    theta[7] = 1.0
    out = torch.empty_like(theta)
    mixing.mix_rows(theta, out, links, quiet, at(1), torch.zeros_like(block.step))
    assert torch.equal(out[7], theta[7])


def test_steps_are_taken_off_the_rows_and_columns_they_are_of():
    out, gradient = torch.randn(12, 5000, device="cuda"), torch.randn(4, 5000, device="cuda")
    row_index = torch.tensor([[0] * 6, [6, 7, 8, 9, 10, 11], [6, 1, 2, 9, 4, 5]], device="cuda").int()
    step = torch.tensor([[0.0] * 6, [0.5, 0.0, 2.0, 0.0, 1.0, 0.25]], device="cuda")
    who = torch.tensor([4, 0, 3, 2], device="cuda")
    expected = out.clone()
    expected[row_index[2, who], 64:4000] -= step[1, who, None] * gradient[:, 64:4000]
    mixing.less(out, gradient, who, step, row_index, at(1), 64, 4000)
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)
    untouched = [row for row in range(12) if row not in {4, 6, 2}]
    assert torch.equal(out[untouched], expected[untouched])


def test_models_of_many_parameters_are_mixed():
    """More blocks of a row than the second axis of a grid can have."""
    width = 256 * 65_536 + 5
    stack, block, p = stacked([2])
    theta = torch.randn(2, width, device="cuda")
    out, by_rows = torch.empty_like(theta), torch.empty_like(theta)
    mixing.mix_runs(theta, out, Matrices(stack, torch.device("cuda"))(block.active), at(0))
    mixing.mix_rows(theta, by_rows, mixing.Links.of(stack.neighbours, torch.device("cuda")), block.active, at(0))
    expected = p[0] @ theta
    assert torch.allclose(out, expected, rtol=0, atol=1e-5)
    assert torch.allclose(by_rows, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", CLOSE)
@pytest.mark.parametrize(
    ("name", "outputs", "l2"), [("svm", 10, 0.0), ("svm", 3, 0.1), ("logistic", 10, 0.05), ("linear", 1, 0.2)]
)
@pytest.mark.parametrize(("features", "batch"), [(6, 4), (784, 16), (140, 17)])
@pytest.mark.parametrize("stored", [torch.uint8, torch.float32])
def test_steps_of_linear_models_are_their_gradients(name, outputs, l2, features, batch, stored, precision):
    torch.manual_seed(0)
    model = build(name, (features,), outputs, l2=l2)
    bias = len(model.shapes) > 1
    stride = -(-(features + bias) // 4) * 4
    clients, count = 9, 50
    x = torch.randint(0, 256, (count, features)).to(stored) if stored == torch.uint8 else torch.randn(count, features)
    scale, shift = (1 / 255, -0.3) if stored == torch.uint8 else (1.0, 0.0)
    y = torch.randn(count) if name == "linear" else torch.randint(0, outputs, (count,))
    theta = torch.zeros(clients, outputs, stride)
    theta[:, :, : features + bias] = 0.3 * torch.randn(clients, outputs, features + bias)
    rows = torch.randint(0, count, (2, clients - 1, batch), dtype=torch.int32)
    batch_of = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 3])
    step = torch.rand(2, clients) * (torch.rand(2, clients) < 0.7)
    here = [a.cuda() for a in (x, y, theta.view(clients, -1), rows, batch_of, step)]
    steps = linear.Steps(
        here[0], here[1], scale, shift, here[4], outputs, stride, bias, model.loss, l2, precision
    )  # fmt: skip
    out = torch.full_like(here[2], torch.nan)
    steps.move(here[2], out, here[3], here[5], at(1))
    mine = rows[1][batch_of].long()
    inputs = torch.zeros(clients, batch, stride, dtype=torch.float64)
    inputs[..., :features] = x[mine].double() * scale + shift
    if bias:
        inputs[..., features] = 1.0
    target = y[mine].double() if name == "linear" else y[mine]
    share = torch.tensor(1 / batch, dtype=torch.float64)
    expected = -linear_gradient(model, theta.view(clients, -1).double(), inputs, target, share, step[1].double())
    fires = step[1] != 0
    assert out[~fires].isnan().all()
    got = out[fires].cpu().double()
    if name == "svm" and precision != "fp32":  # a margin near its kink may fall on either side
        away = ((got - expected[fires]).norm(dim=1) / expected[fires].norm(dim=1)).median()
    else:
        away = (got - expected[fires]).norm() / expected[fires].norm()
    assert away < CLOSE[precision], float(away)


@pytest.mark.parametrize("slots", [1, 2, 5, 16])
def test_words_on_a_gpu_are_those_of_the_address(slots):
    random = np.random.default_rng(0)
    seed, i = random.integers(0, 2**63 - 1, 300), random.integers(0, 2**31, 300)
    j, k = random.integers(0, 2**31, 300), random.integers(0, 2**31, (7, 1))
    for stream in (Stream.BATCH, Stream.LINK):
        expected = rng.words(seed, stream, i, j, k, slots=slots, first=8)
        got = rng.words(*(torch.from_numpy(a).cuda() for a in (seed,)), stream,
                        *(torch.from_numpy(a).cuda() for a in (i, j, k)), slots=slots, first=8)  # fmt: skip
        assert np.array_equal(got.cpu().numpy(), expected)
    assert philox.available(torch.device("cuda"))


@pytest.mark.parametrize("shape", [(1, 1), (5, 300), (700, 3)])
def test_sums_on_a_gpu_are_those_of_the_cpu_to_the_last_bit(shape):
    values = torch.from_numpy(np.random.default_rng(0).lognormal(0, 5, size=shape))
    carry = values[0].clone()
    assert torch.equal(sums.running(carry.cuda(), values.cuda()).cpu(), ledger.running(carry, values))
    assert torch.equal(
        sums.fold(values.cuda()).cpu(), ledger.in_order(values) if shape[1] <= 64 else sums_in_row(values)
    )


def sums_in_row(values):
    return torch.cumsum(values, dim=1)[:, -1]
