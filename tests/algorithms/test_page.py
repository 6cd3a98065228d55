"""docs/algorithms.md is what the registry says."""

import re

import pytest
from scripts import algorithms_docs

from dspodfl.algorithms import ALGORITHMS
from dspodfl.algorithms.entry import Entry, Setting

PAGE = algorithms_docs.PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_methods_as_the_registry_has_them():
    assert algorithms_docs.page(PAGE) == PAGE, "run python -m scripts.algorithms_docs"


def test_the_check_ends_with_an_error_where_the_page_is_not_current(monkeypatch, tmp_path):
    page = tmp_path / "algorithms.md"
    monkeypatch.setattr(algorithms_docs, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["algorithms_docs", "--check"])
    page.write_text(PAGE, encoding="utf-8")
    algorithms_docs.main()
    page.write_text(PAGE.replace("### dgd", "### gdg"), encoding="utf-8")
    with pytest.raises(SystemExit, match="not current"):
        algorithms_docs.main()
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="markers"):
        algorithms_docs.main()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_says_how_it_updates_when_to_use_it_and_where_it_was_published(name):
    entry = ALGORITHMS[name]
    assert entry.update and entry.when and entry.reference
    own = PAGE.split(f"\n### {name}\n")[1].split("\n### ")[0]
    assert entry.label in own and entry.line in own and entry.when in own and entry.reference in own
    assert all(f"    {line}" in own for line in entry.update.splitlines())
    for setting in entry.settings:
        default = re.search(rf"^\| `{setting}` \| (.*?) \|", own, re.MULTILINE)
        assert default is not None and default[1] != "–", f"{setting} has no default"


def test_a_default_is_that_of_the_setting_or_of_the_rule_or_the_key_of_the_configuration():
    tracking = ALGORITHMS["gradient_tracking"]
    found = {
        "form": algorithms_docs._default(tracking, "form", tracking.settings["form"]),
        "period": algorithms_docs._default(ALGORITHMS["dfedavg"], "period", ALGORITHMS["dfedavg"].settings["period"]),
    }
    assert found == {"form": "`diging`", "period": "that of `train.dfedavg_period`"}
    bare = Entry("X", "x", schedule="dspodfl.algorithms.schedules:dspodfl")
    own = Setting("a|b", "true or false", bool, default=True)
    assert algorithms_docs._default(bare, "own", own) == "`true`"
    assert algorithms_docs._default(bare, "own", Setting("", "", bool)) == "–"
