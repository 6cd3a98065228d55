"""The files around the code agree: version, changelog, citation, workflow, Makefile, hooks, decision records."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import settings

from dspodfl import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github/workflows/check.yml").read_text()


def test_every_section_of_the_changelog_has_a_version_and_a_date_and_the_newest_is_ours():
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    versions, dates = zip(*(re.fullmatch(r"(\d+\.\d+\.\d+) - (\S+)", head).groups() for head in heads[1:]), strict=True)
    days = [date.fromisoformat(day) for day in dates]
    assert versions[0] == __version__ and days == sorted(days, reverse=True)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation and f"\ndate-released: {dates[0]}\n" in citation


def test_the_workflow_tests_the_pythons_that_are_supported_on_linux_and_macos():
    known = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert re.findall(r'"(3\.\d+)"', WORKFLOW.partition("python: [")[2].partition("]")[0]) == known
    assert "os: [ubuntu-latest, macos-latest]" in WORKFLOW
    assert PROJECT["project"]["requires-python"] == f">={known[0]}"


@pytest.mark.parametrize("file", [".github/workflows/check.yml", ".ci/run", "CONTRIBUTING.md", "README.md"])
def test_every_make_target_that_is_named_exists(file):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    calls = re.findall(r"(?:^|run: |    |`)make ((?:[a-z]+ ?)+?)(?=\s{2}|`|$)", (ROOT / file).read_text(), re.MULTILINE)
    named = {word for call in calls for word in call.split()}
    assert named and named <= targets


def test_hooks_run_the_tools_of_the_project_and_fetch_none():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (\S+)", hooks)) == {"local"} and "://" not in hooks
    assert set(re.findall(r"language: (\S+)", hooks)) == {"system"}
    assert all(entry.startswith(".venv/bin/") for entry in re.findall(r"entry: (.*)", hooks))


def test_the_nightly_profile_draws_other_examples_each_time():
    nightly, suite = settings.get_profile("nightly"), settings.get_profile("suite")
    assert not nightly.derandomize and suite.derandomize and nightly.max_examples > suite.max_examples


def test_coverage_has_a_floor_and_functions_have_a_limit():
    tools = PROJECT["tool"]
    assert 50 <= tools["coverage"]["report"]["fail_under"] <= 100
    lint = tools["ruff"]["lint"]
    assert "C90" in lint["select"] and not {"C901", "PLR0912", "PLR0913", "PLR0915"} & set(lint["ignore"])
    assert {"max-args", "max-branches", "max-statements"} <= lint["pylint"].keys()


RECORDS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_has_its_parts_and_is_listed(record):
    text = record.read_text()
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    number, title = re.match(r"# (\d{4}): (.*)", text).groups()
    assert record.name.startswith(f"{number}-")
    assert f"| [{number}]({record.name}) | {title} |" in (ROOT / "docs/decisions/README.md").read_text()


def test_decision_records_are_numbered_without_gaps():
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_links_of_pages_in_folders_lead_somewhere():
    pages = [*(ROOT / "docs").glob("*/*.md"), *(ROOT / "src").rglob("*.md"), *ROOT.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
