"""docs/theory.md is true: its table has every statement of the paper, what it names exists, its outputs are real."""

import importlib
import re
from pathlib import Path

import pytest
from scripts import theory_docs
from tests.edge import CommandLine

from dspodfl.theory.assess import QUANTITIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
STATEMENTS = [
    "lemma:optimization",
    "lemma:consensus",
    "proposition:spectral_radius",
    "theorem:constant",
    "theorem:nonconvex",
    "lemma:smooth_convex_div",
    "lemma:sgd_errors",
    "lemma:sgd_div",
    "lemma:rho_tilde",
    "lemma:grad_bounds_nonconvex",
    "lemma:sgd_div_nonconvex",
    "lemma:optimization_nonconvex",
    "lemma:consensus_nonconvex",
    "lemma:consensus_nonconvex_explicit",
    "proposition:optimization_nonconvex_explicit",
    "proposition:diminishing",
    "corollary:alpha_cond_new",
    "lemma:bernoulli",
    "lemma:sum_h",
    "theorem:diminishing",
    "corollary:nonconvex_diminishing",
    "proposition:nonconvex_diminishing",
    "corollary:alpha_cond_nonconvex_diminishing",
    "lemma:sum_alpha",
    "theorem:nonconvex_diminishing",
    "lemma:grad_bounds_nonconvex_pl",
    "lemma:optimization_nonconvex_pl",
    "corollary:consensus_nonconvex_pl",
    "proposition:nonconvex_pl",
    "corollary:alpha_cond_nonconvex_pl",
    "theorem:nonconvex_pl",
]
"""Labels of every lemma, proposition, theorem and corollary of the paper."""
STATUSES = ("holds", "holds in corrected form", "false as printed")

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| `(lemma|proposition|theorem|corollary):", line)
]
TESTS = {
    name
    for path in (ROOT / "tests" / "theory").glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_the_table_has_every_statement_of_the_paper_once():
    assert sorted(row[0].strip("`") for row in ROWS) == sorted(STATEMENTS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("`") for row in ROWS])
def test_what_a_row_names_exists(row):
    label, code, tests, status = row
    names = re.findall(r"`([\w.]+)`", code)
    assert names
    cited = False
    for name in names:
        module, attribute = name.split(".")
        found = importlib.import_module(f"dspodfl.theory.formulas.{module}")
        assert hasattr(found, attribute), name
        source = Path(found.__file__).read_text(encoding="utf-8")
        cited |= re.search(rf"{label.strip('`')}\b", source) is not None
    assert cited, f"no module of {names} cites {label}"
    named = re.findall(r"`(test_\w+)`", tests)
    assert named and set(named) <= TESTS
    assert status.startswith(STATUSES)


def test_every_test_that_the_page_names_exists():
    mentioned = set(re.findall(r"`(test_\w+)`", PAGE))
    assert mentioned <= TESTS


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return CommandLine(monkeypatch, capsys, tmp_path)


def test_the_table_of_quantities_is_that_of_the_registry():
    assert theory_docs.page(PAGE) == PAGE, "run python -m scripts.theory_docs"
    assert all(f"| {one.label} | `{one.name}` | {one.source} |" in PAGE for one in QUANTITIES.values())


def test_the_configuration_on_the_page_is_the_file():
    assert f"```toml\n{(ROOT / 'docs/theory/ridge.toml').read_text()}```" in PAGE


@pytest.mark.parametrize(
    "words",
    [
        "theory bound docs/theory/ridge.toml",
        "theory sweep docs/theory/ridge.toml --over graph.radius=0.45,0.5,0.6,0.7,0.8,1 "
        "--set train.learning_rate.value=0.005",
    ],
    ids=["bound", "sweep"],
)
def test_what_the_page_shows_is_what_the_commands_print(dspodfl, words):
    assert f"dspodfl {words}" in PAGE
    found = dspodfl(*words.split())
    assert found.code == 0
    shown = {line.strip() for line in PAGE.splitlines()}
    assert not [line for line in found.out.splitlines() if line.strip() and line.strip() not in shown]
