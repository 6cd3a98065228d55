"""Losses: hand values, PyTorch's own, gradients at kinks, and use under vmap."""

import math

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from dspodfl.problem.models import LOSSES, cross_entropy, half_squared_error, hinge


def random_scores(*shape, classes=7):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(*shape, classes, generator=generator, dtype=torch.float64)
    return scores, torch.randint(classes, shape, generator=generator)


def test_hinge_has_the_hand_values_of_its_definition():
    scores = torch.tensor([[2.0, 1.5, -3.0], [0.0, 0.0, 0.0], [0.0, 5.0, 1.0]])
    target = torch.tensor([0, 2, 2])
    expected = torch.tensor([0.5 / 3, 2 / 3, (0.0 + 5.0) / 3])
    torch.testing.assert_close(hinge(scores, target), expected)


def test_hinge_equals_the_multi_margin_loss_of_pytorch():
    scores, target = random_scores(50)
    torch.testing.assert_close(hinge(scores, target), nn.MultiMarginLoss(reduction="none")(scores, target))


def test_hinge_gradient_equals_that_of_pytorch():
    scores, target = random_scores(50)
    ours = grad(lambda s: hinge(s, target).mean())(scores)
    theirs = grad(lambda s: functional.multi_margin_loss(s, target))(scores)
    torch.testing.assert_close(ours, theirs)


def test_hinge_subgradient_is_zero_at_the_kink():
    at_kink = torch.tensor([1.0, 0.0, -5.0])  # 1 − s_0 + s_1 = 0
    assert grad(hinge)(at_kink, torch.tensor(0)).tolist() == [0.0, 0.0, 0.0]


def test_cross_entropy_has_hand_values_and_stays_finite_for_large_scores():
    scores = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)], [1e4, -1e4]])
    loss = cross_entropy(scores, torch.tensor([0, 1, 1]))
    torch.testing.assert_close(loss, torch.tensor([math.log(2), math.log(4 / 3), 2e4]))


def test_cross_entropy_equals_that_of_pytorch():
    scores, target = random_scores(50)
    torch.testing.assert_close(
        cross_entropy(scores, target), functional.cross_entropy(scores, target, reduction="none")
    )


def test_half_squared_error_takes_scores_with_and_without_the_output_axis():
    scores, target = torch.tensor([3.0, -1.0]), torch.tensor([1.0, -1.5])
    assert half_squared_error(scores, target).tolist() == [2.0, 0.125]
    assert half_squared_error(scores[:, None], target).tolist() == [2.0, 0.125]
    assert grad(half_squared_error)(torch.tensor([3.0]), torch.tensor(1.0)).tolist() == [2.0]


@pytest.mark.parametrize("shape", [(2, 3), (3,), (2, 2)])
def test_half_squared_error_refuses_scores_that_do_not_match_the_targets(shape):
    with pytest.raises(ValueError, match="one number per target"):
        half_squared_error(torch.zeros(shape), torch.zeros(2))


@pytest.mark.parametrize("name", ["hinge", "cross_entropy"])
def test_any_leading_axes_and_vmap_give_the_loss_of_every_sample(name):
    loss = LOSSES[name]
    scores, target = random_scores(3, 4, 5)
    flat = loss(scores.reshape(60, -1), target.reshape(60)).reshape(3, 4, 5)
    torch.testing.assert_close(loss(scores, target), flat)
    torch.testing.assert_close(vmap(vmap(loss))(scores, target), flat)
    torch.testing.assert_close(vmap(loss, in_dims=(0, None))(scores, target[0])[0], flat[0])
    each = vmap(grad(lambda s, y: loss(s, y).mean()))(scores, target)
    torch.testing.assert_close(each[1], grad(lambda s: loss(s, target[1]).mean())(scores[1]))


def test_the_losses_have_the_names_of_the_configuration():
    assert dict(LOSSES) == {
        "hinge": hinge,
        "cross_entropy": cross_entropy,
        "squared_error": half_squared_error,
    }
