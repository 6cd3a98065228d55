"""Configurations as files: the template, the way there and back, changes on the command line, and paths."""

import re
import tomllib
import typing
from datetime import date
from typing import Literal

import annotated_types as limits
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.edge import NAMED, PLACES, TINY_TOML, keys, merged, tables, tiny, walk

from dspodfl import Config, ConfigError
from dspodfl.algorithms import ALGORITHMS
from dspodfl.config import AlgorithmTable, dumps, load, template
from dspodfl.config.model import Factory
from dspodfl.config.nodes import Nodes
from dspodfl.config.schema import Until

# --- the template ---------------------------------------------------------------------------------------------


def test_the_template_is_exactly_the_defaults():
    assert Config(**tomllib.loads(template())) == Config()


def test_the_template_names_every_key():
    words = set(re.findall(r"\w+", template()))
    assert sorted(name for name in keys() if name.partition(".")[2] not in words) == []


def test_the_template_names_every_kind():
    words = set(re.findall(r"[\w-]+", template()))
    kinds = {
        value
        for table in walk()
        for field in table.model_fields.values()
        if typing.get_origin(field.annotation) is Literal
        for value in typing.get_args(field.annotation)
    }
    assert sorted(kinds - words - {"custom"}) == []  # custom data are given in Python


def test_the_template_writes_every_default_out():
    """A key that has a default and a line of its own in the defaults has it in the template too."""
    written, known = tomllib.loads(template()), tomllib.loads(dumps(Config().model_dump()))
    for name, value in known.items():
        for key in value if isinstance(value, dict) else ():
            assert key in written[name], f"{name}.{key}"
        assert name in written


# --- there and back -------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), WORDS, st.dates())
ARGUMENTS = st.dictionaries(
    WORDS,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2), max_leaves=4
    ),
    max_size=3,
)


ADDRESSES = st.sampled_from(["pi3.local:7733", "127.0.0.1:1", "[::1]:65535"])
FORMS = {
    "Nodes.run_id": st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True),
    "Nodes.retain": st.sampled_from(["1 B", "1.5 GiB", "256 MB"]),
    "Nodes.listen": ADDRESSES,
    "Peer.address": ADDRESSES,
    "Peer.key": st.just("sha256:" + "0a" * 32),
}
"""Texts that have a form."""


PATHS_DRAWN = st.text(st.characters(codec="utf-8", exclude_characters="/."), min_size=1, max_size=6).map("/".__add__)


def limit(metadata, kind, default):
    """What a limit of some kind says: ``limit([Ge(1)], Ge, None)`` is 1."""
    name = kind.__name__.lower() if kind in (limits.Ge, limits.Gt, limits.Le, limits.Lt) else None
    flat = [part for m in metadata for part in getattr(m, "metadata", [m])]
    found = [
        getattr(m, name or ("min_length" if kind is limits.MinLen else "max_length"))
        for m in flat
        if isinstance(m, kind)
    ]
    return found[0] if found else default


def numbers(kind, metadata):
    """Any number within the limits of a field."""
    if kind is int:
        most = min(limit(metadata, limits.Lt, 2**64) - 1, limit(metadata, limits.Le, 2**64))
        return st.integers(limit(metadata, limits.Ge, -(2**64)), most)
    least = limit(metadata, limits.Gt, None)
    low = limit(metadata, limits.Ge, -1e300) if least is None else least
    return st.floats(float(low), float(limit(metadata, limits.Le, 1e300)), exclude_min=least is not None)


def values(annotation, metadata=()):
    """Anything that an annotation allows."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return values(arguments[0], [*arguments[1:], *metadata])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        lengths = [m for m in metadata if isinstance(m, limits.Len)]
        least = max([0, *(m.min_length for m in lengths)])
        least = max(least, limit(metadata, limits.MinLen, 0))
        most = min([limit(metadata, limits.MaxLen, 3), *(m.max_length for m in lengths if m.max_length is not None)])
        return st.lists(values(arguments[0]), min_size=least, max_size=most)
    if origin is dict:
        return ARGUMENTS
    if arguments:
        return st.one_of(*(values(argument) for argument in arguments if argument is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return raw(annotation)
    return (
        {bool: st.booleans(), str: PATHS_DRAWN}[annotation]
        if annotation in (bool, str)
        else numbers(annotation, metadata)
    )


@st.composite
def raw(draw, table, leave=()):
    """A table with some of its keys, as it may stand in a file."""
    out = {}
    for key, field in table.model_fields.items():
        if key not in leave and (field.is_required() or key in ("kind", "law", "name") or draw(st.booleans())):
            form = FORMS.get(f"{table.__name__}.{key}", values(field.annotation, field.metadata))
            out[key] = draw(turns() if key == "graphs" else form)
    if table is Nodes:  # each node once
        out["peer"] = list({peer["id"]: peer for peer in out.get("peer", [])}.values())
    if table is Until:  # exactly one of its keys
        key = draw(st.sampled_from(list(table.model_fields)))
        return {key: draw(values(table.model_fields[key].annotation, table.model_fields[key].metadata))}
    return out


def turns():
    """Graphs that take turns, each with keys of its own only."""
    graphs = tables(Config.model_fields["graph"].annotation)
    common = ("weights", "directed", "dynamics", "seed", "allow_disconnected")
    return st.lists(st.one_of(*(raw(graph, leave=common) for graph in graphs)), min_size=1, max_size=2)


@st.composite
def configs(draw, path=(), held=None):
    """Any valid configuration; if a place is given, with a table of this kind there."""
    table = draw(raw(Config, leave=("algorithms",)))
    if path == ("data", "partition"):
        table["data"] = {"name": "synthetic"}
    here = table
    for key in path[:-1]:
        here = here.setdefault(key, {})
    if path:
        here[path[-1]] = draw(raw(held))
    names = st.sampled_from([*ALGORITHMS, "package.module:schedule"])
    table["algorithms"] = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    table["seed"] = min(table.get("seed", 0), 2**62)
    _mend_graph(table, path, draw(st.sampled_from([{"period": 3}, {"times": [0, 5]}])))
    _mend_model(table, path)
    return Config(**table)


def _mend_graph(table, path, rhythm):
    """Turns have one rhythm; only clients with places walk; arcs have weights and draws of their own."""
    graph = table.get("graph", {})
    if graph.get("directed"):
        graph.pop("weights", None)
        table.get("rates", {}).pop("link_draw", None)
    dynamics = graph.get("dynamics", {})
    if dynamics.get("kind") == "switching":
        graph["dynamics"] = {"kind": "switching", "graphs": dynamics["graphs"], **rhythm}
    if dynamics.get("kind") == "waypoint":
        dynamics["speed"] = sorted(dynamics.get("speed", [0.1, 0.2]))
        if path == ("graph",) and graph["kind"] != "geometric":
            del graph["dynamics"]
        elif graph.get("kind", "geometric") != "geometric":
            table["graph"] = {"dynamics": dynamics}


def _mend_model(table, path):
    """Regression and its models go together."""
    regression, model = table.get("data", {}).get("name") == "ridge", table.get("model", {}).get("name")
    wrong = (regression and model in ("svm", "logistic")) or (not regression and model == "linear")
    if wrong and path[:1] == ("model",):
        table["data"] = {"name": "ridge" if model == "linear" else "synthetic"}
    elif wrong:
        del table["model"]
    if (table.get("attack") or {}).get("kind") == "label_flip" and table.get("data", {}).get("name") == "ridge":
        for key in ("data", "model") if path[:1] == ("attack",) else ("attack",):
            table.pop(key, None)


@pytest.mark.parametrize(("path", "table"), PLACES, ids=NAMED)
def test_a_resolved_configuration_reads_back_as_itself_whatever_tables_it_has(tmp_path, path, table):
    @settings(max_examples=6)
    @given(configs(path, table))
    def check(config):
        (tmp_path / "resolved.toml").write_text(dumps(config.model_dump()), encoding="utf-8")
        assert load(tmp_path / "resolved.toml") == config
        found = config
        for key in path:
            found = getattr(found, key)
        assert type(found) is table

    check()


@given(configs())
def test_a_configuration_is_the_same_from_its_own_tables(config):
    assert Config(**dict(config)) == config


@given(ARGUMENTS)
def test_whatever_toml_can_say_may_be_an_argument_of_a_factory(arguments):
    config = Config(model={"factory": "package.module:network", "arguments": arguments})
    assert tomllib.loads(dumps(config.model_dump()))["model"].get("arguments") == arguments


@pytest.mark.parametrize("value", [None, object(), int, [{"deep": None}], {"deep": {1: 2}}, np.float64])
def test_an_argument_that_toml_cannot_write_is_refused(value):
    with pytest.raises(ConfigError, match=re.escape("model.arguments.width")):
        Config(model={"factory": "package.module:network", "arguments": {"width": value}})


def test_numbers_and_names_that_need_care_read_back():
    tables = {"a b": {"x": [1e-30, -0.0, 1e22, float("inf")], "é": {"a.b": [{"name": "dgd", "settings": {}}]}}}
    text = dumps(tables)
    assert repr(tomllib.loads(text)) == repr(tables)
    assert len(text.splitlines()) == 4  # a line for each key: lists and tables inside are inline


def test_dates_stay_dates():
    config = Config(model={"factory": "package.module:network", "arguments": {"born": date(2024, 2, 29)}})
    assert tomllib.loads(dumps(config.model_dump()))["model"]["arguments"] == {"born": date(2024, 2, 29)}


def test_a_resolved_table_begins_with_its_kind():
    for line in dumps(tiny(graph={"kind": "grid", "rows": 2}).model_dump()).split("\n\n"):
        table, first, *_ = line.splitlines()
        if table in ("[graph]", "[data]", "[model]"):
            assert first.split(" = ")[0] in ("kind", "name")


# --- changes on the command line ------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TINY_TOML)
    return path


def test_without_a_file_the_defaults_hold():
    assert load() == Config()


def test_a_change_beats_the_file_and_an_option_beats_both(file):
    assert load(file).seeds == 1
    assert load(file, ["seeds=5"]).seeds == 5
    assert load(file, ["seeds=5", "seeds=6"]).seeds == 6
    assert load(file, ["seeds=5"], seeds=7).seeds == 7
    assert load(file, ["seeds=5"], seeds=None).seeds == 5


def test_a_change_leaves_the_other_keys_of_its_table(file):
    changed, before = load(file, ["train.batch_size=7"]), load(file)
    assert changed.train.batch_size == 7
    assert changed.train.iterations == before.train.iterations == 4
    assert changed.data == before.data


@pytest.mark.parametrize(
    ("text", "of", "value"),
    [
        ("seed=1_000", "seed", 1000),
        ("seed = 7", "seed", 7),
        ("train.order=adapt_then_combine", "train.order", "adapt_then_combine"),
        ('train.order="adapt_then_combine"', "train.order", "adapt_then_combine"),
        ("train.order='adapt_then_combine'", "train.order", "adapt_then_combine"),
        ("graph.allow_disconnected=true", "graph.allow_disconnected", True),
        ("eval.targets=[0.25, 0.5]", "eval.targets", [0.25, 0.5]),
        ("eval.targets=[]", "eval.targets", []),
        ("train.learning_rate.value=1e-3", "train.learning_rate.value", 0.001),
        ("rates.sgd={law='constant',value=0.5}", "rates.sgd.value", 0.5),
        ('algorithms=["rg"]', "algorithms", ["rg"]),
        ("data.name=fmnist-mini", "data.name", "fmnist-mini"),
        ("train.dfedavg_period=auto", "train.dfedavg_period", "auto"),
        ("train.dfedavg_period=3", "train.dfedavg_period", 3),
    ],
)
def test_a_change_takes_a_toml_value_or_a_bare_word(text, of, value):
    found = load(None, [text])
    for key in of.split("."):
        found = getattr(found, key)
    assert found == value and type(found) is type(value)


def test_a_bare_word_may_be_a_factory_or_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(None, ["model.factory=package.module:network"]).model == Factory(factory="package.module:network")
    assert load(None, ["graph.kind=file", "graph.file=./some-graph.csv"]).graph.file == str(tmp_path / "some-graph.csv")


def test_an_inline_table_replaces_the_whole_table(file):
    changed = load(file, ["data={name='synthetic',features=9}"]).data
    assert changed == Config(data={"name": "synthetic", "features": 9}).data
    assert load(file, ["graph={kind='grid',rows=2}", "graph.weights=max_degree"]).graph.rows == 2


def test_the_same_key_of_two_tables_is_two_keys():
    changed = load(None, ["graph.seed=1", "rates.seed=2"])
    assert (changed.graph.seed, changed.rates.seed, changed.data.seed, changed.seed) == (1, 2, None, 0)


# --- paths ----------------------------------------------------------------------------------------------------

PATHS = {
    "graph.file": ("graph", {"kind": "file", "file": "{}"}),
    "graph.dynamics.graphs": (
        "graph",
        {"kind": "ring", "dynamics": {"kind": "switching", "graphs": [{"kind": "file", "file": "{}"}], "period": 2}},
    ),
    "rates.sgd.file": ("rates", {"sgd": {"law": "csv", "file": "{}"}}),
    "rates.link.file": ("rates", {"link": {"law": "csv", "file": "{}"}}),
    "rates.availability.file": ("rates", {"availability": {"kind": "trace", "file": "{}", "seconds": 1.0}}),
    "rates.churn.file": ("rates", {"churn": {"kind": "trace", "file": "{}", "seconds": 1.0}}),
    "data.path": ("data", {"name": "npz", "path": "{}"}),
    "model.weights": ("model", {"name": "vgg11", "weights": "{}"}),
    "nodes.tls.certificate": ("nodes", {"tls": {"certificate": "{}"}}),
    "nodes.tls.key": ("nodes", {"tls": {"key": "{}"}}),
    "nodes.tls.ca": ("nodes", {"tls": {"ca": "{}"}}),
    "nodes.peer.certificate": ("nodes", {"peer": [{"id": 0, "address": "here:1", "certificate": "{}"}]}),
}


def paths(value):
    """Every text in a table that is an absolute path."""
    if isinstance(value, dict):
        return [path for inner in value.values() for path in paths(inner)]
    if isinstance(value, list):
        return [path for inner in value for path in paths(inner)]
    return [value] if isinstance(value, str) and value.startswith("/") else []


@pytest.mark.parametrize("name", PATHS)
def test_a_path_in_a_file_is_relative_to_the_file_and_one_on_the_command_line_to_the_working_directory(
    name, tmp_path, monkeypatch
):
    table, content = PATHS[name]
    for folder in ("config", "work"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    text = dumps({table: content})
    file = tmp_path / "config" / "study.toml"
    for given_path, expected in (
        ("some/thing", tmp_path / "config/some/thing"),
        ("../up", tmp_path / "up"),
        ("/abso/lute", "/abso/lute"),
    ):
        file.write_text(text.replace("{}", given_path))
        assert paths(load(file).model_dump()) == [str(expected)]
    inline = text.partition("\n[")[2].partition("]\n")[2].replace("{}", "some/thing")
    changes = [f"{table}.{line}" for line in inline.splitlines()]
    assert paths(load(None, changes).model_dump()) == [str(tmp_path / "work/some/thing")]


def test_every_text_of_the_schema_that_names_a_file_is_known_as_a_path():
    texts = {
        f"{table.__name__}.{key}"
        for table in walk()
        for key, field in table.model_fields.items()
        if field.annotation in (str, str | None) and table is not AlgorithmTable  # names of code, not of files
    }
    of_rates = {"CsvLaw.file", "CapacitiesLaw.file", "TraceAvailability.file", "TraceChurn.file"}
    of_nodes = {"Tls.certificate", "Tls.key", "Tls.ca"}
    known = of_rates | of_nodes | {"FileGraph.file", "Npz.path", "Vgg11.weights", "Factory.factory"}
    assert texts - set(FORMS) == known


def test_a_path_may_begin_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    found = load(None, ["graph={kind='file',file='~/graph.csv'}"]).graph.file
    assert found == "/home/someone/graph.csv"


def test_numpy_values_and_tuples_are_values_too():
    config = tiny(seed=np.int64(3), eval={"targets": (0.5, np.float32(0.25)), "at_delay": np.array([1.0, 2.0])})
    assert (config.seed, config.eval.targets, config.eval.at_delay) == (3, [0.5, 0.25], [1.0, 2.0])
    assert type(config.seed) is int and type(config.eval.targets[1]) is float
    assert merged({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
