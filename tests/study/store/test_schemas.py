"""Kinds and formats of JSON files are checked when they are read."""

import pytest

from dspodfl.errors import DataError
from dspodfl.study.store.schemas import check_format, check_summary


@pytest.mark.parametrize("content", [{"kind": "grid", "format": 1}, {"kind": "grid", "format": 2}, {"format": 1}, {}])
def test_a_known_kind_and_format_are_read_and_so_is_what_0_1_wrote(content):
    check_format(content, {"grid"}, 2, "grid.json")


@pytest.mark.parametrize(("kind", "format_"), [("run", 1), ("grid", 3), ("grid", "x"), ([], 1)])
def test_another_kind_or_a_later_format_is_refused_by_name(kind, format_):
    with pytest.raises(DataError) as error:
        check_format({"kind": kind, "format": format_}, {"grid"}, 2, "grid.json")
    assert str(error.value) == f"grid.json is of kind {kind!r}, format {format_!r}; here 'grid', 2"


STUDY = {
    **{"iterations": 1, "iterations_done": 1, "complete": True, "wall_seconds": 0.0, "run_iterations_per_second": 0.0},
    **{"device": "cpu", "precision": "fp32", "seeds": {}},
}
SPREAD, QUANTILES = dict.fromkeys(("mean", "std")), dict.fromkeys(("median", "quartile1", "quartile3"))
ALGORITHM = {
    **{"seeds": 1, "diverged": 0, "final_accuracy": SPREAD, "final_loss": SPREAD, "final_optimality_error": SPREAD},
    **{"final_delay": {"delay_total": QUANTILES}, "targets": [], "at_delay": []},
}


@pytest.mark.parametrize("more", [{}, {"source": "simulation"}, {"source": "nodes", "models_missing": 3}])
def test_a_summary_says_who_has_trained(more):
    check_summary({"study": STUDY | more, "algorithms": {"dgd": ALGORITHM}}, "summary.json")


@pytest.mark.parametrize(("key", "value"), [("source", "dreams"), ("models_missing", -1), ("models_missing", "3")])
def test_a_summary_of_another_source_is_refused(key, value):
    with pytest.raises(DataError, match=f"study.{key}"):
        check_summary({"study": STUDY | {key: value}, "algorithms": {"dgd": ALGORITHM}}, "summary.json")
