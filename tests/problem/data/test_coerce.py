"""Data as people have them: what each form is read as, what is cut off and said, and what is refused."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.edge import TINY, merged, on_the_cpu, tiny
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from dspodfl import Config, DataError, Dataset, Federation, InputError, run
from dspodfl.problem.data.coerce import FEATURES, HELD_OUT, LABELS, as_data

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 3)).astype(np.float32), RNG.integers(0, 4, 30)
XT, YT = RNG.normal(size=(12, 3)).astype(np.float32), RNG.integers(0, 4, 12)
IMAGES = RNG.integers(0, 255, (30, 8, 8), dtype=np.uint8)
CUT = "data were given without test samples"


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


class Items(TorchDataset):
    """A map-style dataset of whatever samples it is given."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


class DatasetDict(dict):
    """As the datasets library has it."""


def named(x="image", y="label", xs=X, ys=Y):
    return [{x: a, y: int(b), "index": i} for i, (a, b) in enumerate(zip(xs, ys, strict=True))]


def tensors(x, y):
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


# --- the same data in every form ------------------------------------------------------------------------------

SPLIT = {
    "four arrays": (X, Y, XT, YT),
    "a list of four arrays": [X, Y, XT, YT],
    "four nested lists": (X.tolist(), Y.tolist(), XT.tolist(), YT.tolist()),
    "tensors": tuple(torch.from_numpy(a) for a in (X, Y, XT, YT)),
    "a dictionary of arrays": {"x_train": X, "y_train": Y, "x_test": XT, "y_test": YT},
    "tables": (pd.DataFrame(X), pd.Series(Y), pd.DataFrame(XT), pd.Series(YT)),
    "labels in a column": (X, Y[:, None], XT, YT[:, None]),
    "two pairs in a tuple": ((X, Y), (XT, YT)),
    "two torch datasets": (tensors(X, Y), tensors(XT, YT)),
    "two torch datasets in a list": [tensors(X, Y), tensors(XT, YT)],
    "splits of pairs": {"train": (X, Y), "test": (XT, YT)},
    "splits of torch datasets": {"train": tensors(X, Y), "test": tensors(XT, YT)},
    "splits of samples": {"train": named(), "test": named(xs=XT, ys=YT)},
    "splits of columns": {"train": {"x": X, "y": Y}, "test": {"x": XT, "y": YT}},
    "a DatasetDict": DatasetDict(train=Items(named()), test=Items(named(xs=XT, ys=YT))),
    "samples as pairs": {"train": [*zip(X, Y.tolist(), strict=True)], "test": Items([*zip(XT, YT, strict=True)])},
    "validation for test": {"train": (X, Y), "validation": (XT, YT)},
    "more splits": {"train": (X, Y), "test": (XT, YT), "unsupervised": (X, Y)},
}


@pytest.mark.parametrize("given", SPLIT.values(), ids=SPLIT)
def test_training_and_test_samples_are_the_same_in_every_form(given):
    found = as_data(given, seed=0).data
    assert isinstance(found, Dataset)
    for got, wanted in ((found.x_train, X), (found.y_train, Y), (found.x_test, XT), (found.y_test, YT)):
        assert np.array_equal(got, wanted) and got.dtype in (np.float32, np.int64)


@pytest.mark.parametrize("x", FEATURES)
@pytest.mark.parametrize("y", LABELS)
def test_samples_are_known_by_the_usual_names(x, y):
    found = as_data({"train": named(x, y), "test": Items(named(x, y, XT, YT))}, seed=0).data
    assert np.array_equal(found.x_train, X) and np.array_equal(found.y_test, YT)


def test_a_run_on_data_of_any_form_is_that_of_the_arrays():
    expected = run(tiny(), data=(X, Y, XT, YT)).metrics
    for name in ("a DatasetDict", "splits of samples", "two pairs in a tuple"):
        assert run(tiny(), data=SPLIT[name]).metrics.equals(expected)


# --- test samples that are cut off ----------------------------------------------------------------------------

ALONE = {
    "a pair": (X, Y),
    "a pair in a list": [X, Y],
    "nested lists": (X.tolist(), Y.tolist()),
    "a torch dataset": tensors(X, Y),
    "a list of samples": named(),
    "columns": {"features": X, "target": Y},
    "splits without a test": {"train": (X, Y)},
}


def rows(*parts):
    return sorted(map(tuple, np.concatenate(parts).tolist()))


@pytest.mark.parametrize("given", ALONE.values(), ids=ALONE)
def test_one_sample_in_six_is_cut_off_where_there_is_no_test_split(given):
    found = as_data(given, seed=3)
    assert len(found.data.x_test) == 30 // HELD_OUT == 5 and len(found.data.x_train) == 25
    assert rows(found.data.x_train, found.data.x_test) == rows(X)
    assert re.match(CUT, found.notes[0]) and "5 of the 30" in found.notes[0] and "seed 3" in found.notes[0]


def test_which_samples_are_cut_off_is_a_matter_of_the_data_seed_alone():
    one, same, other = (as_data((X, Y), seed=seed).data.x_test.tolist() for seed in (3, 3, 4))
    assert one == same != other
    pinned = tiny(seed=1, data={"seed": 3})
    for config, cut in ((pinned, one), (tiny(seed=3), one), (tiny(seed=4, seeds=2), other)):
        with pytest.warns(UserWarning, match=CUT):
            result = run(config, data=(X, Y), schedules=None)
        about = result.summary["study"]["seeds"][str(config.seed)]["data"]
        used = config.seed if config.data.seed is None else config.data.seed
        assert about["test_split"] == f"5 of 30 samples, cut off with seed {used}" and len(cut) == 5


def test_what_is_cut_off_is_said_in_a_warning_and_in_the_summary_which_is_json():
    with pytest.warns(UserWarning, match=CUT) as caught:
        result = run(tiny(), data=(X, Y))
    assert caught[0].filename == __file__
    about = json.loads(json.dumps(result.summary))["study"]["seeds"]["0"]["data"]
    assert about["test_split"].startswith("5 of 30 samples") and about["samples_max"] > 0


def test_splits_that_are_not_used_and_one_that_stands_in_are_said():
    for name, key in (("validation for test", "test_split"), ("more splits", "unused_splits")):
        with pytest.warns(UserWarning, match="data: "):
            result = run(tiny(), data=SPLIT[name])
        assert re.search("validation|unsupervised", str(result.summary["study"]["seeds"]["0"]["data"][key]))


# --- each client's own data -----------------------------------------------------------------------------------

CLIENTS = [(X[:12], Y[:12]), (X[12:18], Y[12:18]), (X[18:], Y[18:])]


@pytest.mark.parametrize(
    "train",
    [CLIENTS, tuple(CLIENTS), [{"x": x, "y": y} for x, y in CLIENTS], [tensors(x, y) for x, y in CLIENTS]],
    ids=["list", "tuple of three", "columns", "torch datasets"],
)
def test_a_list_of_parts_is_the_data_of_each_client(train):
    found = as_data({"train": train, "test": (XT, YT)}, seed=0).data
    assert isinstance(found, Federation) and found.sizes.tolist() == [12, 6, 12]
    for shard, (x, y) in zip(found.shards, CLIENTS, strict=True):
        assert np.array_equal(found.dataset.x_train[shard], x) and np.array_equal(found.dataset.y_train[shard], y)
    alone = as_data(train, seed=0)
    assert alone.data.sizes.tolist() == [10, 5, 10] and len(alone.data.dataset.x_test) == 5
    assert rows(alone.data.dataset.x_train, alone.data.dataset.x_test) == rows(X)


def test_two_pairs_are_two_clients_in_a_list_and_train_and_test_in_a_tuple():
    pairs = CLIENTS[0], CLIENTS[2]
    assert as_data([*pairs], seed=0).data.clients == 2
    assert len(as_data(pairs, seed=0).data.x_test) == 12


def test_a_study_has_as_many_clients_as_data_were_given_for():
    raw = merged({key: value for key, value in TINY.items() if key != "clients"}, {"graph": {"kind": "path"}})
    with pytest.warns(UserWarning, match=CUT):
        result = run(Config(**raw), data=CLIENTS)
    assert result.clients["samples"].tolist() == [10, 5, 10] * 2
    assert result.summary["study"]["seeds"]["0"]["data"]["test_split"] == "5 of 30 samples, cut off with seed 0"


# --- images ---------------------------------------------------------------------------------------------------


def pictures(colour=False):
    mode = "RGB" if colour else "L"
    return [Image.fromarray(image).convert(mode) for image in IMAGES]


@pytest.mark.parametrize("colour", [False, True])
def test_pil_images_become_bytes_with_their_channels_first(colour):
    samples = [{"img": image, "fine_label": int(y)} for image, y in zip(pictures(colour), Y, strict=True)]
    found = as_data({"train": samples, "test": samples[:5]}, seed=0).data
    assert found.input_shape == ((3 if colour else 1), 8, 8) and found.x_train.dtype == np.uint8
    assert np.array_equal(found.x_train[:, 0], IMAGES)


def test_channels_that_come_last_are_turned():
    found = as_data((np.stack([IMAGES] * 3, axis=-1), Y), seed=0).data
    assert found.input_shape == (3, 8, 8)
    kept = as_data((np.stack([IMAGES] * 3, axis=1), Y), seed=0).data
    assert kept.input_shape == (3, 8, 8)


@pytest.mark.parametrize("model", ["svm", "logistic", "mlp", "cnn"])
def test_greyscale_images_without_a_channel_axis_work_with_every_model(model):
    config = tiny(model={"name": model} | ({"channels": [2]} if model == "cnn" else {}))
    with_axis = run(config, data=(IMAGES[:, None], Y, IMAGES[:9, None], Y[:9])).metrics
    for data in ((IMAGES, Y, IMAGES[:9], Y[:9]), Dataset.from_arrays(IMAGES, Y, IMAGES[:9], Y[:9])):
        assert run(config, data=data).metrics.equals(with_axis)


def test_greyscale_images_in_files_work_with_a_convolutional_network(tmp_path):
    for i in range(4):
        np.savez(tmp_path / f"{i}.npz", x=IMAGES[i::4], y=Y[i::4])
    np.savez(tmp_path / "test.npz", x=IMAGES, y=Y)
    config = tiny(model={"name": "cnn", "channels": [2]}, data={"name": "npz", "path": str(tmp_path)})
    assert np.isfinite(run(config).metrics["loss"]).all()


def test_a_custom_model_gets_samples_in_the_shape_that_was_given():
    shapes = []

    def model(input_shape, outputs):
        shapes.append(input_shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    run(tiny(), data=(IMAGES, Y, IMAGES, Y), model=model)
    assert shapes[0] == (8, 8)


# --- what is refused ------------------------------------------------------------------------------------------

UNKNOWN = {
    "a word": "fmnist",
    "a number": 3,
    "an array alone": np.zeros((3, 3)),
    "three numbers": (1, 2, 3),
    "three arrays": (X, Y, XT),
    "nothing": [],
    "a dictionary of something else": {"alice": (X, Y)},
    "a function": len,
}


@pytest.mark.parametrize("given", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_no_data_is_refused_by_its_type(given):
    with pytest.raises(InputError) as caught:
        run(tiny(), data=given)
    assert str(caught.value).startswith("data = '") and "(x, y)" in str(caught.value)


WRONG = {
    "too few labels": ((X, Y[:-1]), "x has 30 samples, y has shape (29,)"),
    "too few labels of the test": ({"train": (X, Y), "test": (XT, YT[:3])}, "test: x has 12 samples, y has shape (3,)"),
    "one-hot labels": ((X, np.eye(4)[Y]), "y has shape (30, 4)"),
    "samples without features": ((np.arange(5.0), np.arange(5)), "x has shape (5,)"),
    "no samples": ((np.zeros((0, 3)), np.zeros(0)), "x has shape (0, 3)"),
    "one sample": ((X[:1], Y[:1]), "data has 1 sample"),
    "words as labels": ((X, np.array(["a"] * 30)), "y_train is <U1"),
    "words as features": ((np.full((30, 2), "a"), Y), "x_train is <U1"),
    "labels and targets": ({"train": (X, Y), "test": (XT, YT / 2)}, "labels or both be regression targets"),
    "samples of other shapes": ([(X[0], 1), (X[0, :2], 1)], "different shapes"),
    "samples without a label": ({"train": Items([{"image": X[0]}])}, "sample 0 has the keys image"),
    "samples of three": ({"train": Items([(X[0], 1, 2)])}, "sample 0 is tuple of 3"),
    "an empty dataset": (Items([]), "has no sample"),
    "clients of other shapes": ([(X, Y), (X[:, :2], Y)], "client 1 has samples of shape (2,)"),
    "clients of other types": ([(X, Y), (X.astype(int), Y)], "client 1 has samples of shape (3,), int64"),
    "clients with targets and labels": ([(X, Y), (X, Y / 2)], "client 1 has y of float64, client 0 of int64"),
    "clients with few samples": ([(X[:3], Y[:3]), (X[3:8], Y[3:8])], "no client has 6 samples"),
    "a client without labels": ({"train": [(X, Y), (X, Y[:2])], "test": (XT, YT)}, "train, client 1: x has 30 samples"),
    "a test split that is no part": ({"train": (X, Y), "test": 3}, "test is int"),
    "train that is an array": ({"train": X, "test": (XT, YT)}, "train is ndarray of shape (30, 3)"),
}


@pytest.mark.parametrize(("given", "says"), WRONG.values(), ids=WRONG)
def test_data_that_do_not_fit_are_refused_by_what_was_given(given, says):
    with pytest.raises(DataError) as caught:
        run(tiny(), data=given)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1
