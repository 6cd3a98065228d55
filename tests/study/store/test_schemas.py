"""Kinds and formats of JSON files are checked when they are read."""

import pytest

from dspodfl.errors import DataError
from dspodfl.study.store.schemas import check_format


@pytest.mark.parametrize("content", [{"kind": "grid", "format": 1}, {"kind": "grid", "format": 2}, {"format": 1}, {}])
def test_a_known_kind_and_format_are_read_and_so_is_what_0_1_wrote(content):
    check_format(content, {"grid"}, 2, "grid.json")


@pytest.mark.parametrize(("kind", "format_"), [("run", 1), ("grid", 3), ("grid", "x"), ([], 1)])
def test_another_kind_or_a_later_format_is_refused_by_name(kind, format_):
    with pytest.raises(DataError) as error:
        check_format({"kind": kind, "format": format_}, {"grid"}, 2, "grid.json")
    assert str(error.value) == f"grid.json is of kind {kind!r}, format {format_!r}; here 'grid', 2"
