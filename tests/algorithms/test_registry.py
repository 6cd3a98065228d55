"""The registry of methods: what holds for every one of them, and what names and settings it refuses."""

import subprocess
import sys

import numpy as np
import pytest
from tests.edge import TINY, tiny
from tests.worlds import classified, make_run

from dspodfl import Config, InputError, run
from dspodfl.algorithms import (
    ALGORITHMS,
    PAPER,
    RULES,
    Algorithm,
    Simultaneous,
    Sporadic,
    draws_independently,
    fused_kernel,
    known_rules,
    make,
    named,
    registered_name,
    rests_without_events,
    schedules,
    settings_problem,
)
from dspodfl.algorithms.making import without_code
from dspodfl.network import Events, Part

DATA = classified()
EVERY = pytest.mark.parametrize("name", ALGORITHMS)


def test_the_paper_compares_five_and_a_study_that_names_none_is_of_these():
    assert PAPER == ("dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg")
    assert Config().algorithms == list(PAPER)


@EVERY
def test_an_entry_says_what_people_see(name):
    entry = ALGORITHMS[name]
    assert entry.label
    assert entry.line == entry.line.strip() and "\n" not in entry.line
    assert entry.reference
    assert registered_name(entry.label) == registered_name(name.upper()) == name
    assert all(registered_name(alias) == name for alias in entry.aliases)


def test_no_two_methods_look_or_are_called_alike():
    entries = ALGORITHMS.values()
    styles = [entry.style for entry in entries if entry.style is not None]
    assert len({style.colour for style in styles}) == len({(s.dash, s.marker) for s in styles}) == len(styles)
    assert len({entry.label for entry in entries}) == len(entries)


@EVERY
def test_a_method_makes_a_schedule_and_a_rule_that_work(name):
    schedule, rule = make(Algorithm(name, schedule=name, rule=name if ALGORITHMS[name].rule else "simultaneous"))
    made = make_run(name, data=DATA)
    graph = made.rates.graph
    events = schedule(np.arange(5), Part.whole(graph, 3), made.rates)
    assert isinstance(events, Events)
    assert events.v.shape == (5, graph.n) and events.v.dtype == bool
    assert events.v_hat.shape == (5, graph.links) and events.v_hat.dtype == bool
    assert callable(rule.init) and callable(rule.step)


@EVERY
def test_a_method_says_the_same_of_iterations_one_by_one_and_together(name):
    schedule, made = named(name), make_run(name, data=DATA)
    part = Part.whole(made.rates.graph, 3)
    together = schedule(np.arange(12), part, made.rates)
    for k in range(12):
        one = schedule(np.array([k]), part, made.rates)
        assert np.array_equal(one.v[0], together.v[k]) and np.array_equal(one.v_hat[0], together.v_hat[k])


@EVERY
def test_two_labels_of_a_method_give_identical_rows(name):
    twins = [name, {"name": name, "label": "its twin"}]
    kind = {"relay": "path", "bridge": "complete"}.get(name, "ring")  # a tree; enough neighbours
    graph = {"kind": kind, "weights": "lazy_metropolis"}  # D² refuses other weights on a ring of four
    found = run(tiny(algorithms=twins, seeds=2, graph=graph, train={"iterations": 8})).metrics
    one, other = (found[found["algorithm"] == label].drop(columns="algorithm") for label in (name, "its twin"))
    assert len(one) == len(other) > 0
    assert one.reset_index(drop=True).equals(other.reset_index(drop=True))


@EVERY
def test_settings_that_a_method_does_not_have_are_refused_with_those_it_has(name):
    key, value, allowed = settings_problem(name, None, {"colour": 1})
    assert (key, value) == ("colour", 1)
    assert all(known in allowed for known in ALGORITHMS[name].settings)
    with pytest.raises(InputError, match=r"algorithms\.settings\.colour"):
        named(name, colour=1)


def test_what_computes_a_method_is_not_imported_to_list_or_to_validate_it():
    code = (
        "import sys; from dspodfl.config import Config, json_schema, template\n"
        "from dspodfl.algorithms import ALGORITHMS\n"
        "Config(algorithms=['dgd', {'schedule': 'rg', 'rule': 'adapt_then_combine'}]); json_schema(); template();"
        "assert len(ALGORITHMS) >= 5; assert not {'torch', 'numba', 'pandas'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = (
        "import sys; sys.argv = ['dspodfl', 'list']; from dspodfl.ui.cli import app\n"
        "try: app.main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'networkx', 'scipy.special', 'pandas'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


METHOD = """
from dspodfl.algorithms.entry import Entry, Setting

ENTRY = Entry(
    label="Heavy ball",
    line="DSpodFL with momentum",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:Momentum",
    settings={"beta": Setting("the momentum", "a number in [0, 1)", lambda value: 0 <= value < 1)},
)


class Momentum:
    mixes = 1

    def __init__(self, beta=0.5):
        self.beta = beta

    def init(self, theta, links):
        return 0.0 * theta

    def step(self, theta, m, at):
        m = self.beta * m + at.gradient(theta, at.lr * at.v)
        return at.mix(theta) - m, m
"""
USE = """
import sys
from dspodfl.algorithms import methods
methods.__path__.append(sys.argv[1])
from tests.edge import tiny
from dspodfl import ConfigError, run
from dspodfl.algorithms import PAPER
given = ["Heavy Ball", {"name": "heavy_ball", "label": "light", "settings": {"beta": 0.0}}, "dspodfl",
         {"schedule": "dgd", "rule": "heavy_ball", "settings": {"beta": 0.9}}]
found = run(tiny(algorithms=given)).metrics
assert set(found["algorithm"]) == {"heavy_ball", "light", "dspodfl", "dgd+heavy_ball"}
steps = {name: rows["sgd_steps"].tolist() for name, rows in found.groupby("algorithm")}
assert steps["heavy_ball"] == steps["light"] == steps["dspodfl"]
assert "heavy_ball" not in PAPER and tiny().labels == ["dspodfl", "dgd"]
try:
    tiny(algorithms=[{"name": "heavy_ball", "settings": {"beta": 2}}])
except ConfigError as error:
    assert "a number in [0, 1)" in str(error)
else:
    raise AssertionError
from dspodfl.analysis.figures import NAMES, style
assert NAMES["heavy_ball"] == "Heavy ball" and style.custom(["dgd", "heavy_ball"]) == ["heavy_ball"]
sys.argv = ["dspodfl", "list", "algorithms"]
from dspodfl.ui.cli import app
app.main()
"""


def test_a_method_is_one_file(tmp_path):
    (tmp_path / "heavy_ball.py").write_text(METHOD)
    done = subprocess.run([sys.executable, "-c", USE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = " ".join(done.stdout.split())
    assert "heavy_ball neighbourhood sends 1 model sporadic undirected DSpodFL with momentum" in listed


# --- what is declared -----------------------------------------------------------------------------------------


def test_the_rules_of_train_order_declare_what_the_engine_may_do_with_them():
    assert {name: fused_kernel(rule) for name, rule in RULES.items()} == {
        "simultaneous": "simultaneous",
        "combine_then_adapt": None,
        "adapt_then_combine": None,
    }
    assert all(rests_without_events(rule) for rule in RULES.values())
    assert set(RULES) <= set(known_rules())


class Other(Simultaneous):
    def step(self, theta, state, at):
        return theta, state


class Same(Simultaneous):
    pass


def test_a_subclass_with_another_step_has_to_declare_it_again():
    assert fused_kernel(Other()) is None and not rests_without_events(Other())
    assert fused_kernel(Same()) == "simultaneous" and rests_without_events(Same())


class Shifted(Sporadic):
    def __call__(self, k, part, rates):
        return super().__call__(k + 1, part, rates)


def test_a_schedule_with_another_call_has_no_known_probabilities():
    plain = schedules.dspodfl
    assert draws_independently(plain)
    assert not draws_independently(Shifted(plain.probabilities))
    assert not draws_independently(lambda k, part, rates: None)


# --- making parts ---------------------------------------------------------------------------------------------


class Scaled:
    def __init__(self, factor=1.0):
        self.factor = factor

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return at.mix(theta, minus=at.gradient(theta, self.factor * at.lr * at.v)), state


def every(period):
    return schedules.dfedavg(period)


def test_each_part_takes_the_settings_that_it_has_a_parameter_for():
    both = Algorithm("both", schedule="dfedavg", rule=Scaled, settings={"period": 3, "factor": 0.5})
    schedule, rule = make(both)
    assert schedule.probabilities.period == 3 and rule.factor == 0.5
    assert make(Algorithm("function", schedule=every, settings={"period": 4}))[0].probabilities.period == 4
    assert make(Algorithm("default", schedule="dfedavg"), value_of=lambda key: 7)[0].probabilities.period == 7
    with pytest.raises(InputError, match=r"settings\.size = 2: must be left out: allowed are factor"):
        make(Algorithm("mine", schedule="dgd", rule=Scaled, settings={"size": 2}))
    with pytest.raises(InputError, match="an integer of at least 1, or 'auto'"):
        make(Algorithm("mine", schedule="dfedavg", settings={"period": 0}))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"schedule": 3}, "algorithms = 'x': must be a Schedule, .*not a int"),
        ({"schedule": "dgd", "rule": object()}, "it has no init and no step"),
        ({"schedule": "dgd", "local": 3}, "local of 'x' = 3: must be a Local, with init"),
        ({"schedule": "dgd", "settings": [1]}, "a dictionary by names"),
    ],
)
def test_what_is_no_algorithm_is_refused_where_it_is_made(parts, message):
    with pytest.raises(InputError, match=message):
        Algorithm("x", **parts)
    with pytest.raises(InputError, match="label"):
        Algorithm("", schedule="dgd")


def test_an_algorithm_is_frozen():
    value = Algorithm("x", schedule="dgd", settings={"a": 1})
    with pytest.raises(AttributeError):
        value.label = "y"
    with pytest.raises(TypeError):
        value.settings["a"] = 2


def test_without_code_names_are_checked_and_nothing_is_imported():
    found = without_code(Algorithm("x", schedule="none:here", rule="neither:This", settings={"a": 1}))
    assert (found.schedule, found.rule, dict(found.settings)) == ("dspodfl", "simultaneous", {})
    with pytest.raises(InputError, match=r"algorithms\.rule"):
        without_code(Algorithm("x", schedule="dgd", rule="os:system"))


# --- in a configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "dgd", "rule": "simultaneous"}, "either name, or schedule and rule"),
        ({"label": "x"}, "either name, or schedule and rule"),
        ({"rule": "simultaneous"}, "either name, or schedule and rule"),
        ({"name": "dgdd"}, r"algorithms.name = 'dgdd': must be one of .*did you mean 'dgd'"),
        ({"name": "mine:schedule"}, "code is given by schedule and rule"),
        ({"schedule": "ggd"}, r"algorithms.schedule = 'ggd': must be one of .*package.module:object"),
        ({"schedule": "dgd", "rule": "momentum"}, r"algorithms.rule = 'momentum': must be one of simultaneous"),
        ({"name": "dgd", "label": ""}, None),
        ({"name": "dgd", "label": "a\nb"}, "printable characters"),
        ({"name": "dgd", "label": "rg"}, "another label: it is the name of a registered method"),
        ({"name": "dgd", "settings": {"period": 3}}, "left out: allowed are inverse_rates"),
        ({"name": "dfedavg", "settings": {"D": 3}}, r"settings.D = 3: must be left out: allowed are period"),
        ({"name": "dfedavg", "settings": {"period": 0}}, "an integer of at least 1, or 'auto'"),
        ({"name": "dfedavg", "settings": {"period": True}}, "an integer of at least 1, or 'auto'"),
        ({"name": "dgd", "labels": "x"}, r"algorithms\[0\].labels = 'x': unknown key"),
        ({"name": 3}, r"algorithms\[0\].name = 3: must be a string"),
        (3, r"algorithms\[0\] = 3: must be a string"),
    ],
)
def test_a_table_that_is_no_algorithm_is_refused(given, message):
    if message is None:
        assert tiny(algorithms=[given]).labels == ["dgd"]
        return
    with pytest.raises(Exception, match=message) as found:
        tiny(algorithms=[given])
    assert type(found.value).__name__ == "ConfigError"


def test_two_equal_labels_are_refused():
    for pair in (
        ["dgd", {"name": "dgd"}],
        [{"name": "dgd", "label": "x"}, {"name": "rg", "label": "x"}],
        [{"schedule": "dgd"}, {"schedule": "dgd"}],
    ):
        with pytest.raises(Exception, match=r"named once|the label of one algorithm alone"):
            tiny(algorithms=pair)


def test_a_table_that_says_no_more_than_a_name_is_that_name():
    given = ["DGD", {"name": "Sporadic SGDs"}, {"name": "rg", "label": "rg", "settings": {}}]
    assert tiny(algorithms=given).algorithms == ["dgd", "sporadic_sgd", "rg"]
    assert Config(**TINY | {"algorithms": {"name": "dgd"}["name"]}).labels == ["dgd"]


def test_the_default_rule_is_that_of_train_order(monkeypatch):
    from dspodfl.study.builder import build

    given = ["dgd", {"schedule": "rg"}, {"schedule": "rg", "rule": "simultaneous", "label": "x"}]
    rules = build(tiny(algorithms=given, train={"order": "combine_then_adapt"}))[1].rules
    assert [type(rule).__name__ for rule in rules] == ["CombineThenAdapt", "CombineThenAdapt", "Simultaneous"]
