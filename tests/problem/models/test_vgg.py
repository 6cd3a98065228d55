"""VGG11: torchvision's names and shapes, both heads, and weights from files."""

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from dspodfl.errors import DataError, InputError
from dspodfl.problem.models import build
from dspodfl.problem.models.pretrained import read_weights

IMAGES = (3, 32, 32)
FEATURES = {
    "features.0.weight": (64, 3, 3, 3),
    "features.0.bias": (64,),
    "features.3.weight": (128, 64, 3, 3),
    "features.3.bias": (128,),
    "features.6.weight": (256, 128, 3, 3),
    "features.6.bias": (256,),
    "features.8.weight": (256, 256, 3, 3),
    "features.8.bias": (256,),
    "features.11.weight": (512, 256, 3, 3),
    "features.11.bias": (512,),
    "features.13.weight": (512, 512, 3, 3),
    "features.13.bias": (512,),
    "features.16.weight": (512, 512, 3, 3),
    "features.16.bias": (512,),
    "features.18.weight": (512, 512, 3, 3),
    "features.18.bias": (512,),
}
CIFAR = {"classifier.weight": (10, 512), "classifier.bias": (10,)}
IMAGENET = {
    "classifier.0.weight": (4096, 25088),
    "classifier.0.bias": (4096,),
    "classifier.3.weight": (4096, 4096),
    "classifier.3.bias": (4096,),
    "classifier.6.weight": (1000, 4096),
    "classifier.6.bias": (1000,),
}


def spread(shapes, value=0.0):
    """Tensors of any shape that take no room, in memory or in a .pth file."""
    return {name: torch.tensor(value).expand(shape) for name, shape in shapes.items()}


def listed(model):
    return [(name, tuple(shape)) for name, shape in model.shapes.items()]


def test_the_cifar_head_has_torchvision_s_features_and_one_linear_layer():
    model = build("vgg11", IMAGES, 10)
    assert listed(model) == list((FEATURES | CIFAR).items())
    convolutions = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
    by_hand = sum(9 * a * b + b for a, b in convolutions) + 512 * 10 + 10
    assert model.parameters == by_hand == 9_225_610


def test_group_normalization_adds_two_numbers_a_channel():
    model = build("vgg11", IMAGES, 10, norm="group")
    assert model.parameters == 9_225_610 + 2 * (64 + 128 + 2 * 256 + 4 * 512) == 9_231_114
    groups = [layer for layer in model.module.modules() if isinstance(layer, nn.GroupNorm)]
    assert [layer.num_groups for layer in groups] == [32] * 8
    kinds = [type(layer).__name__ for layer in list(model.module.features)[:5]]
    assert kinds == ["Conv2d", "GroupNorm", "ReLU", "MaxPool2d", "Conv2d"]


def test_the_imagenet_head_has_torchvision_s_names_shapes_and_size():
    model = build("vgg11", IMAGES, 10, head="imagenet")
    assert listed(model) == list((FEATURES | IMAGENET).items())
    assert model.parameters == 132_863_336
    assert model.outputs == 10


@pytest.mark.parametrize("side", [32, 40, 64, 224])
def test_the_imagenet_head_gives_a_thousand_scores_for_any_image_from_32_pixels(side):
    model = build("vgg11", (3, side, side), 10, head="imagenet")
    theta = torch.empty(model.parameters, device="meta")
    assert model.scores(theta, torch.empty(2, 3, side, side, device="meta")).shape == (2, 1000)


def test_spreading_one_pixel_is_adaptive_average_pooling():
    pool = build("vgg11", IMAGES, 10, head="imagenet").module.avgpool
    x = torch.randn(2, 5, 1, 1)
    assert torch.equal(pool(x), nn.AdaptiveAvgPool2d(7)(x))


def test_from_scratch_every_layer_starts_by_its_law_and_scores_are_sensible():
    model = build("vgg11", IMAGES, 10)
    theta = model.initial(0)
    state = model.unflatten(theta)
    for name, shape in FEATURES.items():
        if name.endswith("weight"):
            assert state[name].std().item() == pytest.approx((2 / (9 * shape[0])) ** 0.5, rel=0.1)
        else:
            assert not state[name].any()
    assert state["classifier.weight"].std().item() == pytest.approx(0.01, rel=0.1)
    scores = model.scores(theta, torch.randn(4, *IMAGES, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (4, 10)
    assert 1e-3 < scores.std() < 10


@pytest.mark.parametrize(
    ("params", "shape", "outputs", "message"),
    [
        ({"norm": "batch"}, IMAGES, 10, r"model\.norm = 'batch': must be 'none' or 'group'"),
        ({"head": "mnist"}, IMAGES, 10, r"model\.head = 'mnist': must be 'cifar' or 'imagenet'"),
        ({}, (3, 64, 64), 10, r"model\.head = 'cifar': must be 'imagenet'"),
        ({"head": "imagenet"}, IMAGES, 1001, r"model\.head = 'imagenet': must be 'cifar'"),
        ({"norm": "group", "weights": "x.pth"}, IMAGES, 10, r"model\.weights.*used with norm = \"none\""),
    ],
)
def test_choices_that_do_not_fit_are_refused(params, shape, outputs, message):
    with pytest.raises(InputError, match=message):
        build("vgg11", shape, outputs, **params)


def save(state, path):
    if path.suffix == ".safetensors":
        safetensors.torch.save_file({name: value.contiguous() for name, value in state.items()}, path)
    else:
        torch.save(state, path)
    return path


@pytest.fixture(scope="module")
def features():
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in FEATURES.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_the_cifar_head_takes_the_features_of_a_file_and_its_own_classifier(tmp_path, features, suffix):
    classifier = {"classifier.0.weight": torch.ones(3, 2), "classifier.6.bias": torch.ones(4)}
    path = save(features | classifier, tmp_path / f"vgg11{suffix}")
    model = build("vgg11", IMAGES, 10, weights=path)
    theta = model.initial(3)
    for name, value in model.unflatten(theta).items():
        if name in features:
            assert torch.equal(value, features[name])
    assert theta[-10:].eq(0).all()
    fresh = build("vgg11", IMAGES, 10)
    assert torch.equal(theta[-5130:], fresh.initial(3)[-5130:])
    theta.zero_()
    assert torch.equal(model.initial(3)[:9], features["features.0.weight"].reshape(-1)[:9])


def test_the_imagenet_head_takes_the_whole_file(tmp_path):
    path = save(spread(FEATURES | IMAGENET, 0.5), tmp_path / "vgg11.pth")
    theta = build("vgg11", IMAGES, 10, head="imagenet", weights=str(path)).initial(0)
    assert theta.shape == (132_863_336,)
    assert (theta.amin(), theta.amax()) == (0.5, 0.5)


def test_the_imagenet_head_refuses_a_file_without_classifier(tmp_path):
    path = save(spread(FEATURES), tmp_path / "vgg11.pth")
    with pytest.raises(InputError, match=r"lacks classifier\.0\.weight, .* and 2 more") as error:
        build("vgg11", IMAGES, 10, head="imagenet", weights=path)
    assert (error.value.field, error.value.value) == ("model.weights", str(path))


def test_features_of_another_vgg_are_refused_by_name(tmp_path):
    deeper = spread(FEATURES | {"features.20.weight": (512, 512, 3, 3)})
    with pytest.raises(InputError, match=r"has besides features\.20\.weight"):
        build("vgg11", IMAGES, 10, weights=save(deeper, tmp_path / "deeper.pth"))


def test_grey_images_do_not_fit_the_weights_of_coloured_ones(tmp_path):
    path = save(spread(FEATURES), tmp_path / "vgg11.pth")
    with pytest.raises(InputError, match=r"features\.0\.weight has shape \(64, 3, 3, 3\) and must have \(64, 1"):
        build("vgg11", (1, 32, 32), 10, weights=path)


SMALL = {"a.weight": torch.Size([2, 3]), "a.bias": torch.Size([2])}
GOOD = {"a.weight": torch.ones(2, 3), "a.bias": torch.zeros(2)}


def test_weights_of_lower_precision_are_widened(tmp_path):
    path = save({name: value.half() for name, value in GOOD.items()}, tmp_path / "half.safetensors")
    read = read_weights(path, SMALL)
    assert {value.dtype for value in read.values()} == {torch.float32}
    assert torch.equal(read["a.weight"], GOOD["a.weight"])


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a.bias": torch.zeros(3)}, InputError, r"a\.bias has shape \(3,\) and must have \(2,\)"),
        ({"b.bias": torch.zeros(3)}, InputError, r"has besides b\.bias"),
        ({"a.bias": torch.tensor([0.0, float("nan")])}, DataError, r"a\.bias in .* finite floats"),
        ({"a.bias": torch.tensor([0, 1])}, DataError, r"a\.bias in .* finite floats"),
    ],
)
def test_tensors_of_the_wrong_form_are_named(tmp_path, suffix, change, error, message):
    with pytest.raises(error, match=message):
        read_weights(save(GOOD | change, tmp_path / f"w{suffix}"), SMALL)


@pytest.mark.parametrize("bias", [torch.zeros(2).to_sparse(), torch.zeros(2, device="meta")])
def test_tensors_that_are_not_dense_are_named(tmp_path, bias):
    with pytest.raises(DataError, match=r"a\.bias in .* dense"):
        read_weights(save(GOOD | {"a.bias": bias}, tmp_path / "w.pth"), SMALL)


@pytest.mark.parametrize("content", [[1, 2], {"a.weight": 3}, {1: torch.zeros(2)}, torch.zeros(2)])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="does not hold a state_dict"):
        read_weights(save(content, tmp_path / "w.pth"), SMALL)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
@pytest.mark.parametrize("damage", ["empty", "cut", "noise"])
def test_a_damaged_file_is_a_data_error_that_names_it(tmp_path, suffix, damage):
    path = save(GOOD, tmp_path / f"w{suffix}")
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "noise": b"\x93" * 400}[damage])
    with pytest.raises(DataError, match=f"w{suffix} cannot be read as tensors"):
        read_weights(path, SMALL)


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("by", ["torch", "pickle"])
def test_a_hostile_file_is_refused_and_runs_nothing(tmp_path, by):
    mark, path = tmp_path / "mark", tmp_path / "w.pth"
    if by == "torch":
        torch.save(GOOD | {"a.bias": Hostile(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Hostile(mark), protocol=2))
    with pytest.raises(DataError, match="other Python objects") as error:
        read_weights(path, SMALL)
    assert not mark.exists()
    assert "weights_only=False" not in str(error.value)


@pytest.mark.parametrize(("name", "message"), [("no.pth", "exists"), ("w.onnx", r"\.safetensors, \.pth, \.pt")])
def test_a_wrong_path_is_an_input_error(tmp_path, name, message):
    (tmp_path / "w.onnx").touch()
    with pytest.raises(InputError, match=rf"model\.weights = .*{name}.*{message}"):
        build("vgg11", IMAGES, 10, weights=tmp_path / name)
