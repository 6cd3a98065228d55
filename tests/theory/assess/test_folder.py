"""result.json of the theory carries its kind and its format, and both are checked when it is read."""

import json

import pandas as pd
import pytest
from tests.edge import CommandLine

from dspodfl.errors import DataError
from dspodfl.theory.assess import check_record, write_folder

BOUND = {"guaranteed": True, "algorithms": {}}
SWEEP = {"axes": ["x"], "rows": []}


def test_what_is_written_says_what_it_is(tmp_path):
    write_folder(tmp_path / "told", "theory bound", BOUND, {"table.csv": pd.DataFrame({"a": [0.5]})}, None)
    record = json.loads((tmp_path / "told" / "result.json").read_text())
    assert record == {"kind": "theory bound", "format": 1, **BOUND}
    assert {path.name for path in (tmp_path / "told").iterdir()} == {"manifest.json", "result.json", "table.csv"}


@pytest.mark.parametrize(("record", "kind"), [(BOUND, "theory bound"), (SWEEP, "theory sweep")])
def test_a_record_of_version_0_1_is_known_by_what_it_holds(record, kind, tmp_path):
    assert check_record(record, tmp_path) == kind
    assert check_record({"kind": kind, "format": 1, **record}, tmp_path) == kind


@pytest.mark.parametrize("wrong", [{"format": 2}, {"format": "1"}, {"format": None}, {"kind": "theory of everything"}])
def test_another_kind_or_a_later_format_is_refused_with_both(wrong, tmp_path):
    with pytest.raises(DataError, match=r"result\.json is of kind 'theory .*', format"):
        check_record({"kind": "theory bound", "format": 1, **BOUND} | wrong, tmp_path)


def test_show_refuses_a_later_format(tmp_path, monkeypatch, capsys):
    (tmp_path / "told").mkdir()
    later = {"kind": "theory bound", "format": 2, **BOUND}
    (tmp_path / "told" / "result.json").write_text(json.dumps(later))
    found = CommandLine(monkeypatch, capsys, tmp_path)("show", "told")
    assert found.code != 0 and "format 2" in found.err and "Traceback" not in found.err
