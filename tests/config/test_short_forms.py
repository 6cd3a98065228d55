"""Configurations as people write them: short forms, any spelling, files, dictionaries, and hints for other names."""

from pathlib import Path

import numpy as np
import pytest
from tests.edge import TINY, TINY_TOML, CommandLine, tiny
from torch import nn

from dspodfl import Config, ConfigError, InputError, Simulation, run
from dspodfl.algorithms import ALGORITHMS
from dspodfl.algorithms.schedules import dspodfl
from dspodfl.analysis.figures import NAMES
from dspodfl.config import dumps, load
from dspodfl.config.hints import _OTHER_NAMES, _paths, hint
from dspodfl.config.schema import Train

# --- short forms ----------------------------------------------------------------------------------------------

CONSTANT = {"kind": "constant", "value": 0.05}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('algorithms = "DGD"\n[train]\nlearning_rate = 0.05\n')
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda file: Config(train={"learning_rate": 0.05}, algorithms="DGD"),
        lambda file: load(file),
        lambda file: Config.from_toml(file),
        lambda file: Config.from_toml(str(file)),
        lambda file: load(None, ["train.learning_rate=0.05", "algorithms=DGD"]),
        lambda file: load(None, ["train.learning_rate=0.05", 'algorithms="DGD"']),
        lambda file: Config.model_validate({"train": {"learning_rate": 0.05}, "algorithms": "DGD"}),
    ],
)
def test_a_number_is_a_constant_learning_rate_and_a_word_a_list_of_one_wherever_they_are_written(make, file):
    config = make(file)
    assert config.train.learning_rate.model_dump() == CONSTANT
    assert config.algorithms == ["dgd"]
    assert 'learning_rate = { kind = "constant", value = 0.05 }' in dumps(config.model_dump())


def test_a_change_reaches_into_a_learning_rate_that_the_file_writes_as_a_number(file):
    assert load(file, ["train.learning_rate.value=0.2"]).train.learning_rate.value == 0.2
    changed = load(file, ["train.learning_rate.kind=diminishing", "train.learning_rate.gamma=3"]).train.learning_rate
    assert (changed.kind, changed.value, changed.gamma) == ("diminishing", 0.05, 3)


@pytest.mark.parametrize("value", [True, "fast", [0.1], 0, -1])
def test_what_is_no_learning_rate_is_refused(value):
    with pytest.raises(ConfigError, match=r"train\.learning_rate"):
        Config(train={"learning_rate": value})


def test_seconds_between_checkpoints_are_minutes(file):
    assert load(file, ["checkpoint.every_seconds=30"]).checkpoint.every_minutes == 0.5
    with pytest.raises(ConfigError, match=r"checkpoint\.every_seconds = 30: unknown key"):
        load(file, ["checkpoint={every_seconds=30,every_minutes=1}"])
    with pytest.raises(ConfigError, match=r"checkpoint\.every_minutes = -0\.5"):
        load(file, ["checkpoint.every_seconds=-30"])


@pytest.mark.parametrize("name", [*ALGORITHMS, *NAMES.values()])
def test_every_name_in_tables_and_pictures_is_a_name_in_a_configuration(name):
    assert Config(algorithms=[name]).algorithms[0] in ALGORITHMS


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        *[(name, "dgd") for name in ("DGD", "Dgd", " dgd ", "d-g-d")],
        *[(name, "sporadic_sgd") for name in ("Sporadic SGDs", "sporadic-sgd", "SporadicSGD", "SPORADIC_SGD")],
        *[("DSpodFL", "dspodfl"), ("DFedAvg", "dfedavg"), ("RG", "rg"), ("Randomized Gossip", "rg")],
    ],
)
def test_case_spaces_and_hyphens_of_an_algorithm_do_not_count(name, registered):
    assert Config(algorithms=name).algorithms == [registered]


def test_two_spellings_of_one_algorithm_are_one_algorithm_twice():
    with pytest.raises(ConfigError, match="algorithms = 'dgd': must be named once"):
        Config(algorithms=["dgd", "DGD"])


def test_the_path_of_a_schedule_is_left_as_it_is():
    assert Config(algorithms=["My.Module:DGD"]).algorithms == ["My.Module:DGD"]


def test_a_custom_schedule_may_not_take_another_spelling_of_a_registered_name():
    with pytest.raises(InputError, match="schedules = 'DGD'"):
        run(tiny(), schedules={"DGD": dspodfl})


# --- files and dictionaries -----------------------------------------------------------------------------------


def test_a_study_is_run_from_a_file_a_path_a_dictionary_or_a_configuration(tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    expected = run(tiny())
    for given in (str(tmp_path / "study.toml"), tmp_path / "study.toml", TINY):
        assert run(given).metrics.equals(expected.metrics)
    assert Simulation(str(tmp_path / "study.toml")).config == expected_config()


def expected_config():
    return Simulation(tiny()).config


def test_a_run_from_a_file_is_resumed_with_the_file(tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    first = run(tmp_path / "study.toml", out=tmp_path / "run")
    assert run(tmp_path / "study.toml", resume=tmp_path / "run").metrics.equals(first.metrics)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("none.toml", "none.toml: no such file"),
        (Path("none.toml"), "none.toml: no such file"),
        ({"lr": 0.1}, "did you mean train.learning_rate?"),
        ({3: 4}, "3 is no key"),
        (3, "config = 'int': must be a Config, the path of a TOML file or a dictionary of tables"),
        ([], "config = 'list'"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(given, says):
    with pytest.raises((ConfigError, InputError)) as caught:
        run(given)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


# --- hints ----------------------------------------------------------------------------------------------------

LENGTH = [f"train.{key}" for key in ("iterations", "until") if key in Train.model_fields]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        *[(path, ["train.learning_rate"]) for path in ("lr", "train.lr", "eta", "train.alpha", "train.step_size")],
        *[(p, LENGTH) for p in ("rounds", "epochs", "steps", "num_rounds", "train.rounds", "train.epochs")],
        *[(path, ["clients.count"]) for path in ("num_clients", "n_clients", "clients.num_clients", "graph.nodes")],
        *[(path, ["train.batch_size"]) for path in ("batch", "train.batch", "batch_size", "batchSize", "data.bs")],
        ("iterations", ["train.iterations"]),
        ("eval.iterations", ["train.iterations"]),
        ("learning_rate", ["train.learning_rate"]),
        ("dataset", ["data.name"]),
        ("alpha", ["train.learning_rate", "data.partition.alpha"]),
        ("data.alpha", ["data.partition.alpha"]),
        ("radius", ["graph.radius"]),
        ("topology", ["graph.kind"]),
        ("train.targets", ["eval.targets"]),
        ("iteratoins", ["train.iterations"]),
        ("algorithm", ["algorithms"]),
    ],
)
def test_a_name_in_use_elsewhere_and_a_key_in_the_wrong_table_are_answered_with_the_key(path, meant, tmp_path):
    raw = {}
    table, _, key = path.rpartition(".")
    (raw.setdefault(table, {}) if table else raw)[key] = 3
    says = f"{path} = 3: unknown key; did you mean {', '.join(meant[:-1])}{' or ' if meant[1:] else ''}{meant[-1]}"
    with pytest.raises(ConfigError) as of_python:
        Config(**raw)
    with pytest.raises(ConfigError) as of_set:
        load(None, [f"{path}=3"])
    for caught in (of_python, of_set):
        assert any(line.startswith(says) for line in caught.value.problems), caught.value


def test_a_key_of_another_kind_is_said_to_be_that_kinds():
    with pytest.raises(ConfigError, match=r"graph\.radius = 0\.3: unknown key; it belongs to 'geometric'"):
        Config(graph={"kind": "ring", "radius": 0.3})
    with pytest.raises(ConfigError, match=r"model\.factory = 'a:b': unknown key; it belongs to 'factory'"):
        Config(model={"name": "svm", "factory": "a:b"})


def test_an_option_that_is_no_key_is_said_to_be_an_option():
    with pytest.raises(ConfigError, match="device = 'cpu': unknown key; it is no key: use the option --device"):
        Config(device="cpu")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"graph": "ring"}, "graph = 'ring': must be a table; did you mean graph.kind = 'ring'?"),
        ({"model": "cnn"}, "model = 'cnn': must be a table; did you mean model.name = 'cnn'?"),
        (
            {"rates": {"sgd": "uniform"}},
            "rates.sgd = 'uniform': must be a table; did you mean rates.sgd.law = 'uniform'?",
        ),
        ({"clients": 4}, "clients = 4: must be a table; did you mean clients.count?"),
        ({"train": {"until": 50}}, "train.until = 50: must be a table; did you mean train.until = { delay = 50 }?"),
        (
            {"rates": {"sgd": 0.5}},
            'rates.sgd = 0.5: must be a table; did you mean rates.sgd = { law = "constant", value = 0.5 }?',
        ),
        (
            {"rates": {"link": 2}},
            'rates.link = 2: must be a table; did you mean rates.link = { law = "constant", value = … }?',
        ),
        (
            {"rates": {"sgd": np.array([0.5, 1])}},
            'rates.sgd = [0.5, 1.0]: must be a table; did you mean rates.sgd = { law = "list", values = [0.5, 1.0] }?',
        ),
        ({"data": [1]}, "data = [1]: must be a table; from Python give it to run(…, data=…)"),
        ({"model": nn.Identity()}, "model = Identity(): must be a table; from Python give it to run(…, model=…)"),
        (
            {"train": {"learning_rate": "0.1"}},
            "train.learning_rate = '0.1': must be a number or a table with kind, one of constant, diminishing, step",
        ),
    ],
)
def test_a_value_for_a_table_is_answered_with_the_key_of_the_table(raw, says):
    with pytest.raises(ConfigError) as caught:
        Config(**raw)
    assert caught.value.problems == [says]


def test_every_name_in_use_elsewhere_is_answered_with_keys_that_exist():
    for keys, words in _OTHER_NAMES.items():
        for word in words.split():
            found = f"{hint(word, 3)} {hint(word, {})}"
            assert "did you mean" in found or not set(keys) & set(_paths()), word
            assert all(name.strip("?,'") in _paths() for name in found.split() if "." in name), (word, found)


def test_a_key_as_long_as_a_book_is_refused_in_a_line():
    with pytest.raises(ConfigError) as caught:
        Config(**{"a_" * 10_000: 1})
    assert len(str(caught.value)) < 400 and "unknown key" in str(caught.value)


def test_a_hint_reaches_the_command_line(monkeypatch, capsys, tmp_path):
    dspodfl_ = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    answer = dspodfl_("run", "study.toml", "--set", "num_clients=4")
    assert answer.code == 2 and "did you mean clients.count?" in answer.err
    assert list(tmp_path.iterdir()) == [tmp_path / "study.toml"]


@pytest.mark.parametrize(("key", "value"), [("until_delay", -5), ("until_delay", "x"), ("until.delay", -5)])
def test_a_problem_is_reported_under_the_key_that_was_written(key, value):
    with pytest.raises(ConfigError) as caught:
        load(None, [f"train.{key}={value}"])
    assert [line.partition(" = ")[0] for line in caught.value.problems] == [f"train.{key}"]
