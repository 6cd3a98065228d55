"""Initial values: addresses, distributions, and the same numbers however they are asked for."""

import math
import tracemalloc

import pytest
import torch
from torch import nn

from dspodfl import rng
from dspodfl.problem.models import build
from dspodfl.problem.models import initialization as init
from dspodfl.rng import Stream


def test_the_first_weights_of_the_svm_never_move():
    """Pinned: a change here changes the initial model of every published result."""
    theta = build("svm", (1, 28, 28), 10).initial(0)
    assert [value.hex() for value in theta[:3].tolist()] == [
        "-0x1.694a460000000p-7",
        "-0x1.3859ee0000000p-7",
        "-0x1.1bfeca0000000p-6",
    ]
    assert theta[7840:7842].tolist() == pytest.approx([0.021741025, -0.013983442], rel=1e-6)


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1])
def test_element_e_of_tensor_t_is_uniform_number_e_at_address_k_equal_t(seed):
    model = build("mlp", (5,), 3, hidden=[4])
    state = model.unflatten(model.initial(seed))
    assert list(state) == ["linear0.weight", "linear0.bias", "output.weight", "output.bias"]
    for t, (value, fan_in) in enumerate(zip(state.values(), [5, 5, 4, 4], strict=True)):
        uniform = torch.from_numpy(rng.uniform(seed, Stream.INIT, k=t, count=value.numel()))
        expected = ((2 * uniform - 1) / math.sqrt(fan_in)).float().reshape(value.shape)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-8)


def test_equal_seeds_give_equal_models_and_other_seeds_others():
    model = build("cnn", (1, 8, 8), 4)
    assert torch.equal(model.initial(3), model.initial(3))
    assert torch.equal(model.initial(3), build("cnn", (1, 8, 8), 4).initial(3))
    assert not torch.equal(model.initial(3), model.initial(4))
    assert model.initial(3).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "shape", "fan_in"),
    [("svm", (1, 28, 28), 784), ("logistic", (30,), 30), ("linear", (5000,), 5000)],
)
def test_linear_weights_fill_plus_minus_one_over_root_fan_in(name, shape, fan_in):
    theta = build(name, shape, 1 if name == "linear" else 100).initial(1)
    bound = 1 / math.sqrt(fan_in)
    assert theta.abs().max() <= bound
    assert theta.max() > 0.99 * bound
    assert theta.min() < -0.99 * bound
    assert theta.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_convolutions_follow_pytorch_s_default_law():
    model = build("cnn", (3, 8, 8), 4, channels=[64])
    state = model.unflatten(model.initial(0))
    bound = 1 / math.sqrt(27)
    assert 0.99 * bound < state["conv0.weight"].abs().max() <= bound
    assert state["conv0.bias"].abs().max() <= bound


def test_drawing_in_chunks_changes_no_value_and_bounds_memory(monkeypatch):
    count = 5 * 2**16 + 13
    for distribution in (init.InitialDistribution("uniform", 0.5), init.InitialDistribution("normal", 2.0)):
        monkeypatch.setattr(init, "CHUNK", 2**24)
        whole = init.tensor(distribution, count, seed=5, t=2)
        monkeypatch.setattr(init, "CHUNK", 2**16)
        out = torch.empty(count)
        tracemalloc.start()
        init.tensor(distribution, count, seed=5, t=2, out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert torch.equal(out, whole)
        assert peak < 2**16 * 8 * 40


def test_normal_and_constant_laws_have_their_moments():
    normal = init.tensor(init.InitialDistribution("normal", 0.3), 100_000, seed=1, t=0)
    assert abs(normal.mean().item()) < 4 * 0.3 / math.sqrt(1e5)
    assert normal.std().item() == pytest.approx(0.3, rel=0.01)
    assert init.tensor(init.InitialDistribution("constant", 1.0), 4, seed=1, t=0).tolist() == [1.0] * 4


def test_he_distributions_use_fan_out_and_normalization_starts_as_the_identity():
    conv = init.he_distributions(nn.Conv2d(3, 64, 3))
    assert conv["weight"].scale == pytest.approx(math.sqrt(2 / (64 * 9)))
    assert conv["bias"] == init.InitialDistribution("constant", 0.0)
    assert init.he_distributions(nn.Linear(5, 2))["weight"] == init.InitialDistribution("normal", 0.01)
    for distributions in (init.he_distributions, init.default_distributions):
        assert distributions(nn.GroupNorm(2, 4)) == {
            "weight": init.InitialDistribution("constant", 1.0),
            "bias": init.InitialDistribution("constant", 0.0),
        }


def test_given_tensors_are_kept_and_leave_the_others_at_their_address():
    model = build("svm", (3,), 2)
    weight = torch.arange(6.0).reshape(2, 3)
    mixed = init.addressed(model.module, given={"linear.weight": weight})(9)
    assert mixed[:6].tolist() == weight.reshape(-1).tolist()
    assert torch.equal(mixed[6:], model.initial(9)[6:])


def test_building_and_drawing_leave_torch_s_generator_alone():
    before = torch.get_rng_state()
    build("vgg11", (3, 32, 32), 10)
    build("mlp", (4,), 3).initial(0)
    assert torch.equal(before, torch.get_rng_state())
