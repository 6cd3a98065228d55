"""The table ``local`` of an algorithm: what it may say, how it is written, and that the values of Python agree."""

import tomllib

import pytest
from tests.edge import tiny

from dspodfl import Config, ConfigError
from dspodfl.algorithms import local_table
from dspodfl.config import dumps, load
from dspodfl.config.json_schema import json_schema
from dspodfl.config.local import LocalTable
from dspodfl.errors import InputError

FIRST = '{ name = "dspodfl", local = { decay = 0.1, momentum = 0.9, clip = 1.0 }, label = "dspodfl+m" }'


def item(table):
    return Config(algorithms=[{"name": "dgd", "local": table}]).algorithms[0]


def test_the_keys_are_those_of_the_transformations_in_their_order():
    assert tuple(LocalTable.model_fields) == tuple(local_table.KEYS)


def test_a_table_is_read_written_and_read_again(tmp_path):
    (tmp_path / "study.toml").write_text(f'algorithms = ["dgd", {FIRST}]')
    config = load(tmp_path / "study.toml")
    assert config.labels == ["dgd", "dspodfl+m"]
    values = config.model_dump()
    assert values["algorithms"][1]["local"] == {"clip": 1.0, "momentum": 0.9, "decay": 0.1}
    assert Config(**tomllib.loads(dumps(values))) == Config(**config.model_dump(mode="json")) == config
    assert load(None, [f'algorithms=["dgd", {FIRST}]']).algorithms == config.algorithms


def test_adam_by_true_is_the_table_of_its_defaults():
    assert item({"adam": True}) == item({"adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}}) == item({"adam": {}})
    assert item({"adam": True}).model_dump()["local"] == {"adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}}


def test_an_empty_table_is_none():
    assert tiny(algorithms=[{"name": "dgd", "local": {}}]) == tiny(algorithms=["dgd"])


BAD = [
    ({"clip": 0}, r"local\.clip = 0: must be greater than 0"),
    ({"clip": True}, r"local\.clip = True: must be a number"),
    ({"proximal": -0.1}, r"local\.proximal = -0.1: must be at least 0"),
    ({"momentum": 1.0}, r"local\.momentum = 1.0: must be less than 1"),
    ({"nesterov": -0.1}, r"local\.nesterov = -0.1: must be at least 0"),
    ({"nesterov": True}, r"local\.nesterov = True: must be a number"),
    ({"adam": False}, r"algorithms\.local\.adam = False: must be true, or a table with beta1, beta2 or epsilon"),
    ({"adam": 3}, r"algorithms\.local\.adam = 3: must be true, or a table"),
    ({"adam": {"beta1": 1}}, r"local\.adam\.beta1 = 1: must be less than 1"),
    ({"adam": {"epsilon": 0}}, r"local\.adam\.epsilon = 0: must be greater than 0"),
    ({"adam": {"eps": 1}}, r"local\.adam\.eps = 1: unknown key; .*beta1, beta2, epsilon"),
    ({"decay": float("nan")}, r"local\.decay = nan"),
    ({"weight_decay": 0.1}, r"local\.weight_decay = 0.1: unknown key.*clip, proximal, momentum, nesterov, adam, decay"),
    ({"momentum": 0.9, "adam": True}, r"algorithms\.local\.adam = .*: must be left out: there is momentum"),
    ({"nesterov": 0.9, "momentum": 0.9}, r"algorithms\.local\.nesterov = 0.9: must be left out: there is momentum"),
    (3, r"algorithms\[0\]\.local = 3: must be a table"),
]


@pytest.mark.parametrize(("table", "message"), BAD)
def test_bad_tables_are_refused_here_and_in_python(table, message):
    with pytest.raises(ConfigError, match=message):
        item(table)
    if isinstance(table, dict):
        with pytest.raises(InputError):
            local_table.from_table(table)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ({"name": "gradient_tracking"}, "gradient_tracking"),
        ({"schedule": "dgd", "rule": "gradient_tracking"}, "gradient_tracking"),
    ],
)
def test_methods_that_take_plain_gradients_refuse_it_by_name(table, name):
    with pytest.raises(ConfigError, match=rf"algorithms\.local = .*: must be left out: {name} takes plain gradients"):
        Config(algorithms=[table | {"local": {"clip": 1.0}}])


def test_the_schedule_of_such_a_method_with_another_rule_takes_it():
    table = {"schedule": "gradient_tracking", "rule": "simultaneous", "label": "x", "local": {"clip": 1.0}}
    assert Config(algorithms=[table]).algorithms[0].local.clip == 1.0


def test_the_json_schema_knows_the_table():
    definitions = json_schema()["$defs"]
    assert list(definitions["LocalTable"]["properties"]) == list(local_table.KEYS)
    assert definitions["LocalTable"]["additionalProperties"] is False
    assert definitions["LocalTable"]["properties"]["adam"]["anyOf"][0] == {"const": True}
