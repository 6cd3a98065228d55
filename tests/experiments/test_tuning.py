"""Tuned comparisons: some seeds choose, others are read."""

import numpy as np
import pandas as pd
import pytest
from scripts import algorithms_fmnist

from dspodfl import ConfigError
from dspodfl.algorithms import ALGORITHMS
from dspodfl.analysis import figures
from dspodfl.experiments import ExperimentResult
from dspodfl.experiments import definition as experiments
from dspodfl.experiments.definition import Tune
from dspodfl.experiments.table import outcome_table
from dspodfl.experiments.tuning import readings, tuned
from dspodfl.ui.html.page import compose

TUNE = Tune(over="rate", seeds=2, at=["iterations=15", "delay=1000"], quick=["iterations=10"])


def rows(accuracy, seeds=4, algorithm="dspodfl", rate=0.1, each=10.0, diverged=False):
    """Runs of 20 iterations that grow to an accuracy, by seed; an iteration spends ``each``."""
    out = []
    for seed in range(seeds):
        for iteration in (0, 10, 20):
            value = accuracy(seed) * iteration / 20
            spent = {"delay_total": each * iteration, "bytes": 1000 * iteration}
            more = {"seed": seed, "iteration": iteration, "accuracy": value, "diverged": diverged and iteration == 20}
            out.append({"family": "f", "rate": rate, "algorithm": algorithm} | more | spent)
    return out


def table():
    """Small steps are better on the seeds that are read, 0 and 1, large ones on those that choose, 2 and 3."""
    small = rows(lambda seed: 0.8 if seed < 2 else 0.2, rate=0.1)
    large = rows(lambda seed: 0.4 + 0.1 * seed if seed < 2 else 0.6, rate=1.0)
    lost = rows(lambda seed: 1.0, rate=0.1, algorithm="dgd", each=100.0, diverged=True)
    kept = rows(lambda seed: 0.2, rate=1.0, algorithm="dgd", each=100.0)
    return pd.DataFrame(small + large + lost + kept)


def test_the_last_seeds_choose_and_the_others_are_read():
    found = tuned(table(), ["rate", "family"], TUNE).set_index(["cost", "algorithm"])
    row = found.loc["iterations", "dspodfl"]
    assert (row["tuned"], row["seeds"], row["reached"], row["short"]) == (1.0, 2, 2, 0)
    assert row["accuracy_mean"] == pytest.approx(0.45 * 0.75) and row["tuning_accuracy"] == pytest.approx(0.45)
    assert row["edge"] and row["rank"] == 1 and found.loc["iterations", "dgd"]["rank"] == 2
    each = readings(table(), ["rate", "family"], TUNE)
    assert sorted(set(each["seed"])) == [0, 1]


def test_a_run_that_diverges_before_the_cost_counts_as_nothing_and_one_that_ends_before_is_read_there():
    found = tuned(table(), ["rate", "family"], TUNE).set_index(["cost", "algorithm"])
    assert found.loc["iterations", "dgd"]["tuned"] == 1.0
    assert found.loc["delay", "dgd"]["tuned"] == 0.1, "it diverges after the delay"
    assert found.loc["delay", "dgd"]["accuracy_mean"] == pytest.approx(0.5) and found.loc["delay", "dgd"]["short"] == 0
    assert found.loc["delay", "dspodfl"]["short"] == 2
    assert found.loc["delay", "dspodfl"]["accuracy_mean"] == pytest.approx(0.45)


def test_quick_reads_at_its_own_costs():
    found = tuned(table(), ["rate", "family"], TUNE, quick=True)
    assert set(zip(found["cost"], found["cost_value"], strict=True)) == {("iterations", 10.0)}


def outcome(tmp_path):
    metrics = table()
    aggregates = tuned(metrics, ["rate", "family"], TUNE)
    made = ExperimentResult("algorithms-fmnist", "t", "tuned", ["rate", "family"], metrics, aggregates, {})
    return made.save(tmp_path / "out")


def test_the_outcome_is_written_with_a_figure_and_read_back_and_its_table_has_a_row_for_each_algorithm(tmp_path):
    folder = outcome(tmp_path)
    found = outcome_table(ExperimentResult.load(folder))
    assert [row.cells[0] for row in found.rows] == ["DSpodFL", "DGD"]
    assert found.rows[0].cells[1:4] == ("0.338 ± 0.053", "1", "1!") and found.rows[0].cells[4].endswith("*")
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    page = compose([folder]).html
    assert "rate = 0.1, 1; family = f" in page and "best at this cost on other seeds" in page
    made = figures.tuned(table(), tuned(table(), ["rate", "family"], TUNE), ["rate", "family"])
    assert len(made.axes) == 2 and [line.get_label() for line in made.axes[0].lines] == ["DSpodFL", "DGD"]
    assert np.nanmax(made.axes[0].lines[0].get_ydata()) == pytest.approx(0.45 * 0.75, abs=0.01)


def test_the_page_gets_a_row_for_each_method_and_who_is_ahead_of_dspodfl(tmp_path, monkeypatch):
    monkeypatch.setattr(algorithms_fmnist, "CSV", tmp_path / "fmnist.csv")
    assert algorithms_fmnist.table(algorithms_fmnist.numbers()) == algorithms_fmnist.MISSING
    tune = experiments.named("algorithms-fmnist").model_copy(update={"tune": TUNE})
    monkeypatch.setattr(algorithms_fmnist.definition, "named", lambda name: tune)
    algorithms_fmnist.take(outcome(tmp_path))
    found = algorithms_fmnist.numbers()
    text = algorithms_fmnist.table(found)
    assert text.splitlines()[4].startswith("| DSpodFL | 0.338 ± 0.053 | 1 | 1 (edge) |")
    assert "number 1 of 2" in algorithms_fmnist.standings(found).splitlines()[0]
    assert (tmp_path / "fmnist.png").read_bytes()[:4] == b"\x89PNG"


def test_every_registered_method_is_in_the_experiment_once_and_the_seeds_that_tune_come_on_top():
    experiment = experiments.named("algorithms-fmnist")
    cells = [cell for cell in experiment.cells() if cell.point["learning_rate"] == 0.01]
    given = [name for cell in cells for name in cell.config.algorithms]
    names = [name if isinstance(name, str) else name.name for name in given]
    assert sorted(names) == sorted([*ALGORITHMS, "dspodfl"])  # DSpodFL with steps of α/d, too
    assert {cell.config.seeds for cell in cells} == {experiment.seeds + 3}
    assert {cell.config.seeds for cell in experiment.cells(seeds=1)} == {4}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('kind = "tuned"', "tune"),
        ('kind = "curves"\n[tune]\nover = "a"\nseeds = 1\nat = ["delay=1"]', "tune"),
        ('kind = "tuned"\n[tune]\nover = "a"\nseeds = 1\nat = ["delay=1"]', "not the name"),
        ('kind = "tuned"\n[tune]\nover = "a"\nseeds = 1\nat = ["time=1"]', "KIND=VALUE"),
        ('kind = "tuned"\n[tune]\nover = "a"\nseeds = 0\nat = ["delay=1"]', "seeds"),
    ],
)
def test_a_tuned_experiment_that_is_none_is_refused(text, why, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('title = "t"\npaper = ""\nclaim = ""\nsetting = "fmnist-sweep"\n' + text)
    with pytest.raises(ConfigError, match=why):
        experiments.read(path)
