"""dspodfl theory: what each command prints, writes and refuses."""

import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from tests.edge import CommandLine

from dspodfl import Config
from dspodfl.theory.assess import assess
from dspodfl.theory.formulas import Constants, convex, nonconvex, pl

RIDGE = """
seeds = 2
algorithms = ["dspodfl", "dgd", "dfedavg"]
[clients]
count = 4
[graph]
kind = "complete"
[rates]
sgd = { law = "constant", value = 0.95 }
link = { law = "constant", value = 0.7 }
[data]
name = "ridge"
samples = 60
dimension = 2
heterogeneity = 0.05
l2 = 1.0
[train]
iterations = 40
batch_size = 4
learning_rate = { kind = "constant", value = 0.02 }
[eval]
every = 5
"""
LOGISTIC = """
seeds = 1
algorithms = ["dgd"]
[clients]
count = 3
[graph]
kind = "complete"
[data]
name = "synthetic"
samples = 60
test_samples = 10
features = 2
classes = 2
partition = { kind = "iid" }
[model]
name = "logistic"
l2 = 0.5
[train]
iterations = 20
batch_size = 4
learning_rate = { kind = "constant", value = 0.005 }
[eval]
every = 5
"""
SCARCE = ("--set", "rates.sgd.value=0.3")


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    (tmp_path / "ridge.toml").write_text(RIDGE)
    (tmp_path / "logistic.toml").write_text(LOGISTIC)
    return CommandLine(monkeypatch, capsys, tmp_path)


def answer(dspodfl, *words):
    found = dspodfl("theory", *words, "--json")
    assert found.code == 0, found.err
    return json.loads(found.out)


# --- bound ------------------------------------------------------------------------------------------------------


def test_help_names_every_option(dspodfl):
    common = {"--set", "--algorithms", "--seeds", "--epsilon", "--reach", "--points", "--out", "--overwrite", "--json"}
    for command, own in (("bound", "--compare"), ("sweep", "--over")):
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", dspodfl("theory", command, "--help").out, re.MULTILINE)
        assert set(options) == common | {own, "--help"}


def test_bound_prints_constants_conditions_rates_and_gaps_with_where_they_come_from(dspodfl):
    found = dspodfl("theory", "bound", "ridge.toml")
    assert found.code == 0 and found.err == ""
    for text in (
        "exact maximum over each seed's ball", "ρ̃", "largest α with ρ(Φ) < 1", "gap of ‖θ̄ − θ*‖²", "iterations to",
        "printed: learning-rate condition", "corrected: enough SGD", "theorem:constant", "theorem:nonconvex_pl",
        "DFedAvg: no theorem applies: ρ̃ = 1", "DSpodFL: α = 0.02 is safe",
    ):  # fmt: skip
        assert text in found.out, text


def test_the_numbers_are_those_of_the_theory(dspodfl):
    found = answer(dspodfl, "bound", "ridge.toml", "--seeds", 1)
    c = found["constants"]
    case = found["algorithms"]["dspodfl"]
    constants = Constants(
        m=4, beta=c["beta"], mu=c["mu"], zeta=c["zeta"], delta=c["delta"], sigma=c["sigma"], d_min=0.95, d_max=0.95,
        rho_tilde=case["rho_tilde"], alpha=0.02,
    )  # fmt: skip
    said = case["families"]["strongly convex"]["quantities"]
    system = convex.recursion(constants)
    assert said["ρ(Φ)"] == pytest.approx(system.radius) and said["ρ(Φ)"] < 1
    assert said["gap of ‖θ̄ − θ*‖²"] == pytest.approx(system.gap[0])
    assert said["largest α with ρ(Φ) < 1"] == pytest.approx(convex.largest_rate(constants))
    assert said["largest α by the printed condition"] == pytest.approx(convex.printed_rate(constants))
    start = np.array([c["distance"], 0.0])
    flat = case["families"]["PL"]["quantities"]
    other = pl.recursion(constants)
    assert flat["ρ(Φ)"] == pytest.approx(other.radius)
    assert flat["F(θ̄) − F* after K, at most"] == pytest.approx(other.propagate(np.array([c["excess"], 0.0]), 40)[-1, 0])
    smooth = replace(constants, zeta=c["pairs"][0][0], delta=c["pairs"][0][1])
    told = case["families"]["smooth, non-convex"]["quantities"]
    assert told["largest α for which Γ exist"] == pytest.approx(nonconvex.largest_rate(smooth))
    best = nonconvex.best(smooth, c["excess"], 0.0, 39)
    assert told["mean ‖∇F(θ̄)‖² over 0 … K, at most"] == (pytest.approx(best.total) if best.holds else None)
    assert said["iterations to ‖θ̄ − θ*‖² ≤ ε"] == system.iterations_to(start, said["ε"])
    assert said["‖Θ − 1θ̄‖² after K, at most"] == pytest.approx(system.propagate(start, 40)[-1, 1])


def test_the_constants_hold_for_every_seed(dspodfl):
    found = answer(dspodfl, "bound", "ridge.toml", "--seeds", 3)
    for name, most in (("beta", max), ("zeta", max), ("delta", max), ("sigma", max), ("mu", min)):
        assert found["constants"][name] == most(seed[name] for seed in found["seeds"].values())


def test_epsilon_and_reach_decide_what_they_say(dspodfl):
    def of(*words):
        found = answer(dspodfl, "bound", "ridge.toml", *words)
        return found["constants"]["sigma"], found["algorithms"]["dgd"]["families"]["strongly convex"]["quantities"]

    sigma, loose = of("--epsilon", 0.1, "--reach", 0.1)
    wide, _ = of("--reach", 2)
    same, tight = of("--epsilon", 0.03, "--reach", 0.1)
    assert (loose["ε"], tight["ε"]) == (0.1, 0.03) and wide > sigma == same
    assert loose["iterations to ‖θ̄ − θ*‖² ≤ ε"] < tight["iterations to ‖θ̄ − θ*‖² ≤ ε"]
    assert of("--epsilon", 1e-12)[1]["iterations to ‖θ̄ − θ*‖² ≤ ε"] is None


def test_scarce_sgd_is_named_as_the_hypothesis_that_fails_while_the_printed_condition_holds(dspodfl):
    found = dspodfl("theory", "bound", "ridge.toml", "--set", "train.learning_rate.value=0.001", *SCARCE)
    assert "no learning rate is safe: d_min must be above 1 − μ²/(2β²)" in found.out
    assert "the printed condition would allow α up to" in found.out
    row = next(line for line in found.out.splitlines() if "corrected: enough SGD" in line)
    assert "NO" in row and "yes" in row  # DSpodFL fails it, DGD does not
    assert "0.001 < " in next(line for line in found.out.splitlines() if "printed: learning-rate" in line)


def test_logistic_regression_has_certified_bounds(dspodfl):
    found = dspodfl("theory", "bound", "logistic.toml")
    assert found.code == 0 and "certified bound" in found.out and "no guarantee" not in found.out


def test_other_models_are_never_presented_as_guarantees(dspodfl):
    found = dspodfl("theory", "bound", "logistic.toml", "--set", 'model={ name = "mlp" }', "--points", 4)
    assert found.code == 0 and "no guarantee" in found.out and "measured lower estimate, 4 points" in found.out
    assert "is safe" not in found.out and "were the constants those measured" in found.out
    told = answer(dspodfl, "bound", "logistic.toml", "--set", "model.l2=0", "--points", 4)
    assert told["guaranteed"] is False and list(told["algorithms"]["dgd"]["families"]) == ["smooth, non-convex"]


def test_a_learning_rate_that_no_theorem_is_about_is_said_to_be_one(dspodfl):
    step = 'train.learning_rate={ kind = "step", value = 0.005, every = 5, factor = 0.5 }'
    found = dspodfl("theory", "bound", "logistic.toml", "--set", 'model={ name = "mlp" }', "--set", step, "--points", 3)
    assert found.code == 0 and "no theorem is about this learning rate" in found.out
    found = dspodfl("theory", "bound", "logistic.toml", "--set", step)
    assert "lemma:optimization, lemma:consensus at every k" in found.out and "contract in every iteration" in found.out


@pytest.mark.parametrize("growth", ["none", "learning_rate"])
def test_changing_rates_are_followed_iteration_by_iteration(dspodfl, growth):
    rate = 'train.learning_rate={ kind = "diminishing", value = 0.02, gamma = 10 }'
    found = answer(dspodfl, "bound", "ridge.toml", "--set", rate, "--set", f"rates.growth={growth}", "--epsilon", 0.5)
    families = found["algorithms"]["dspodfl"]["families"]
    said = families["strongly convex"]
    assert said["quantities"]["largest ρ(Φ(k))"] < 1 and said["quantities"]["‖θ̄ − θ*‖² after K, at most"] > 0
    assert ("‖θ̄ − θ*‖² after K, as printed" in said["quantities"]) == (growth == "learning_rate")
    assert ("smooth, non-convex" in families) == (growth == "learning_rate")
    assert any(c["form"] == "printed" for c in said["conditions"]) == (growth == "learning_rate")


def test_bound_writes_numbers_tables_and_pictures_where_asked(dspodfl):
    assert dspodfl("theory", "bound", "ridge.toml", "--out", "told").code == 0
    folder = dspodfl.folder / "told"
    names = {"curves.csv", "figure.png", "figure.svg", "manifest.json", "result.json", "table.csv"}
    assert {path.name for path in folder.iterdir()} == names
    record, curves = json.loads((folder / "result.json").read_text()), pd.read_csv(folder / "curves.csv")
    assert record["constants"]["mu"] > 0 and imread(folder / "figure.png").size > 0
    assert curves["iteration"].max() == 40 and curves["optimality_error_bound"].notna().all()
    table = pd.read_csv(folder / "table.csv")
    kept = table[(table["algorithm"] == "dgd") & (table["what"] == "printed: printed learning-rate condition")]
    assert set(kept["family"]) == {"strongly convex", "PL"} and kept["limit"].notna().all()


def test_nothing_is_written_unless_asked_and_nothing_is_overwritten_unasked(dspodfl):
    before = dspodfl.written()
    dspodfl("theory", "bound", "ridge.toml")
    assert dspodfl.written() == before
    (dspodfl.folder / "told").mkdir()
    for command in (("bound",), ("sweep", "--over", "rates.sgd.value=1")):
        found = dspodfl("theory", command[0], "ridge.toml", *command[1:], "--out", "told")
        assert found.code == 2 and "out = 'told'" in found.err and not list((dspodfl.folder / "told").iterdir())
    assert dspodfl("theory", "bound", "ridge.toml", "--out", "told", "--overwrite").code == 0


# --- bound --compare ----------------------------------------------------------------------------------------------


def test_a_measured_run_is_laid_beside_the_bound(dspodfl):
    dspodfl("run", "ridge.toml", "--out", "measured", "--quiet", "--seeds", 4)
    found = dspodfl("theory", "bound", "ridge.toml", "--compare", "measured", "--out", "told")
    assert found.code == 0 and "never above" in found.out and "no bound" in found.out  # no bound: DFedAvg
    assert "the ball that σ is a maximum over" in found.out
    curves = pd.read_csv(dspodfl.folder / "told" / "curves.csv")
    metrics = pd.read_parquet(dspodfl.folder / "measured" / "metrics.parquet")
    mean = metrics.groupby(["algorithm", "iteration"])["optimality_error"].mean()
    for row in curves.itertuples():
        assert row.optimality_error == pytest.approx(mean[row.algorithm, row.iteration]) and row.seeds == 4
    bounded = curves[(curves["algorithm"] == "dspodfl") & (curves["iteration"] > 0)]
    assert (bounded["consensus_error"] < bounded["consensus_error_bound"]).all()
    assert (bounded["optimality_error"] < bounded["optimality_error_bound"]).all()
    assert imread(dspodfl.folder / "told" / "figure.png").size > 0


def test_logistic_runs_are_compared_in_both_errors(dspodfl):
    dspodfl("run", "logistic.toml", "--out", "measured", "--quiet")
    found = dspodfl("theory", "bound", "logistic.toml", "--compare", "measured")
    assert found.code == 0 and found.out.count("never above") == 2


def test_a_bound_that_is_passed_is_said_to_be(dspodfl):
    dspodfl("run", "ridge.toml", "--out", "measured", "--quiet")
    path = dspodfl.folder / "measured" / "metrics.parquet"
    metrics = pd.read_parquet(path)
    metrics.loc[metrics["iteration"] == 20, "consensus_error"] = 1e3
    metrics.to_parquet(path)
    (path.parent / "manifest.json").unlink()  # else it is damaged
    found = dspodfl("theory", "bound", "ridge.toml", "--compare", "measured", "--algorithms", "dgd")
    assert "above the bound" in found.out and "models left the ball" in found.out


def test_a_run_of_something_else_is_refused_with_what_differs(dspodfl):
    dspodfl("run", "ridge.toml", "--out", "measured", "--quiet", "--algorithms", "dgd", "--seeds", 1)
    for words, said in (
        (("--set", "rates.sgd.value=0.9"), "there rates.sgd.value = 0.95, here 0.9"),
        (("--algorithms", "rg"), "a run of rg; it has dgd"),
    ):
        found = dspodfl("theory", "bound", "ridge.toml", "--compare", "measured", *words)
        assert found.code == 2 and "--compare = 'measured'" in found.err and said in found.err
    found = dspodfl("theory", "bound", "ridge.toml", "--compare", "nowhere")
    assert found.code == 2 and "nowhere" in found.err


def test_a_run_whose_errors_no_bound_is_about_is_refused(dspodfl):
    mlp = ("--set", 'model={ name = "mlp" }')
    dspodfl("run", "logistic.toml", *mlp, "--out", "measured", "--quiet")
    found = dspodfl("theory", "bound", "logistic.toml", *mlp, "--points", 3, "--compare", "measured")
    assert found.code == 2 and "regularized logistic regression" in found.err


# --- sweep ------------------------------------------------------------------------------------------------------


def test_sweep_says_how_rate_and_gap_move(dspodfl):
    words = ("--over", "rates.link.value=0.3,0.6,1", "--over", "rates.sgd.value=0.9,1", "--algorithms", "dspodfl")
    rows = pd.DataFrame(answer(dspodfl, "sweep", "ridge.toml", *words)["rows"])
    assert len(rows) == 6 and list(rows.columns[:3]) == ["rates.link.value", "rates.sgd.value", "algorithm"]
    for _, group in rows.groupby("rates.sgd.value"):
        assert group["rho_tilde"].is_monotonic_decreasing and group["largest_rate"].is_monotonic_increasing
    for _, group in rows.groupby("rates.link.value"):
        assert group["radius"].is_monotonic_decreasing  # more SGD, faster
    base = Config(**{**_toml(), "rates": {"sgd": _given(0.9), "link": _given(0.6)}, "algorithms": ["dspodfl"]})
    alone = assess(base).algorithms[0].result("strongly convex").quantities
    cell = rows[(rows["rates.link.value"] == 0.6) & (rows["rates.sgd.value"] == 0.9)].iloc[0]
    assert cell["radius"] == pytest.approx(alone["radius"])
    assert cell["gap_optimality"] == pytest.approx(alone["gap_optimality"])


def _given(value):
    return {"law": "constant", "value": value}


def _toml():
    return tomllib.loads(RIDGE)


def test_sweep_over_the_learning_rate_and_the_graph_writes_a_table_and_a_picture(dspodfl):
    words = ("--over", "train.learning_rate.value=0.001,0.01", "--over", "graph.kind=ring,complete")
    found = dspodfl("theory", "sweep", "ridge.toml", *words, "--algorithms", "dgd,rg", "--out", "told")
    assert found.code == 0 and "picture: told/figure.png" in found.out
    table = pd.read_csv(dspodfl.folder / "told" / "table.csv")
    assert len(table) == 8 and {path.name for path in (dspodfl.folder / "told").iterdir()} == {
        "figure.png", "figure.svg", "manifest.json", "result.json", "table.csv",
    }  # fmt: skip
    gaps = table[table["graph.kind"] == "ring"].groupby("algorithm")["gap_optimality"]
    assert all(group.is_monotonic_increasing for _, group in gaps)
    rho = table.groupby(["algorithm", "graph.kind"])["rho_tilde"].max()
    assert all(rho[name, "ring"] > rho[name, "complete"] for name in ("dgd", "rg"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bound", "nowhere.toml"), "nowhere.toml: no such file"),
        (("bound", "ridge.toml", "--epsilon", "0"), "--epsilon = 0.0: must be a finite number above 0"),
        (("bound", "ridge.toml", "--epsilon", "nan"), "--epsilon = nan: must be a finite number above 0"),
        (("bound", "ridge.toml", "--reach", "-1"), "--reach = -1.0: must be a finite number, at least 0"),
        (("bound", "ridge.toml", "--points", "1"), "--points = 1: must be an integer of at least 2"),
        (("bound", "ridge.toml", "--set", "train.order=adapt_then_combine"), "train.order = 'adapt_then_combine'"),
        (
            ("bound", "ridge.toml", "--set", "graph.directed=true"),
            "graph.directed = True: must be false: the theorems are about links that carry models both ways",
        ),
        (("bound", "ridge.toml", "--set", "graph.directed=true", "--algorithms", "push_sum"), "graph.directed = True"),
        (("bound", "ridge.toml", "--algorithms", "push_sum"), "algorithms = 'push_sum'"),
        (("sweep", "ridge.toml", "--over", "graph.directed=true"), "graph.directed = True: must be false"),
        (("bound", "ridge.toml", "--algorithms", "dgdd"), "algorithms = 'dgdd'"),
        (("bound", "ridge.toml", "--set", "data.noise=-1"), "data.noise = -1"),
        (("sweep", "ridge.toml", "--over", "rates.sgd.value"), "must be table.key=value,value"),
        (("sweep", "ridge.toml", "--over", "rates.sgd.valeu=1"), "rates.sgd.valeu"),
        (("sweep", "ridge.toml", "--over", "train.order=simultaneous,adapt_then_combine"), "at train.order ="),
    ],
)
def test_bad_input_is_answered_with_field_value_and_what_is_allowed(dspodfl, words, said):
    before = dspodfl.written()
    found = dspodfl("theory", *words)
    assert found.code == 2 and said in found.err and "Traceback" not in found.err
    assert dspodfl.written() == before
