"""The journal: everything that was written whole is read back exactly, and nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl.study.store.metrics_log import JOURNAL, MetricsLog, read

ROW = {"algorithm": "dgd", "seed": 0, "iteration": 0}


def row(iteration, **values):
    return ROW | {"iteration": iteration} | values


@pytest.fixture
def path(tmp_path):
    return tmp_path / JOURNAL


def written(path, *batches):
    journal = MetricsLog(path)
    journal.begin({"study": {"runs": 1}}, [])
    for n, batch in enumerate(batches):
        journal.append(batch, at=n)
    journal.close()
    return path.read_bytes()


@given(st.lists(st.floats(allow_nan=False) | st.none() | st.integers(-(2**62), 2**62), min_size=1, max_size=5))
def test_numbers_come_back_to_the_last_bit(values):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / JOURNAL
        written(place, *([row(n, value=value)] for n, value in enumerate(values)))
        assert [found["value"] for found in read(place).rows] == values


def test_what_is_no_number_comes_back_as_such(path):
    written(path, [row(0, loss=math.nan, other=math.inf)])
    (found,) = read(path).rows
    assert math.isnan(found["loss"]) and found["other"] == math.inf


def test_a_torn_tail_is_left_out_wherever_it_is_torn(path):
    whole = written(path, [row(0)], [row(1)], [row(2)])
    lines = whole.splitlines(keepends=True)
    first = len(lines[0])
    for end in range(first, len(whole) + 1):
        path.write_bytes(whole[:end])
        complete = sum(1 for n in range(1, 5) if len(b"".join(lines[:n])) - 1 <= end) - 1  # the break says nothing
        assert [found["iteration"] for found in read(path).rows] == [0, 1, 2][:complete]


@pytest.mark.parametrize("how", ["a value", "the line break before", "the line break after", "a tab", "cut short"])
def test_a_line_that_is_damaged_in_the_middle_is_counted_and_what_follows_it_is_read(path, how):
    lines = written(path, [row(0), row(0, seed=1)], [row(1), row(1, seed=1)], [row(2)]).splitlines(keepends=True)
    lines[1] = lines[1].replace(b"\n", b"\x0b") if how == "the line break before" else lines[1]
    lines[2] = {
        "a value": lines[2].replace(b'"seed":1', b'"seed":3'),
        "the line break after": lines[2].replace(b"\n", b"\x0b"),
        "a tab": lines[2].replace(b"\t", b"\x0b"),
        "cut short": lines[2][:20] + b"\n",
    }.get(how, lines[2])
    path.write_bytes(b"".join(lines))
    found = read(path)
    (damage,) = found.damage
    if how == "the line break before":
        assert [each["iteration"] for each in found.rows] == [2]
        assert str(damage) == f"{JOURNAL}: line 2 damaged, 4 rows are lost (at the beginning, before iteration 2)"
    elif how == "the line break after":
        assert [each["iteration"] for each in found.rows] == [0, 0]
        said = "line 3 damaged, an unknown number of rows is lost (after iteration 0, at the end)"
        assert str(damage) == f"{JOURNAL}: {said}"
    else:
        assert [each["iteration"] for each in found.rows] == [0, 0, 2]
        said = "line 3 damaged, 2 rows are lost (after iteration 0, before iteration 2)"
        assert str(damage) == f"{JOURNAL}: {said}"
        assert found.latest == {"at": 2}


def test_every_flipped_bit_is_counted_or_changes_nothing(path):
    content = written(path, [row(0, loss=0.25)], [row(1, loss=0.5)], [row(2, loss=1.0)])
    rows = read(path).rows
    for place in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        found = read(path)
        assert found.damage or found.rows == rows, place


def test_a_journal_whose_first_line_is_damaged_has_its_rows(path):
    journal = MetricsLog(path, columns=tuple(ROW))
    journal.begin({"study": {}}, [])
    journal.append([row(0), row(1)])
    journal.close()
    path.write_bytes(path.read_bytes().replace(b'"study"', b'"Study"'))
    found = read(path, columns=tuple(ROW))
    assert found.header is None and found.rows == [row(0), row(1)]
    assert str(found.damage[0]) == f"{JOURNAL}: line 1 damaged, 0 rows are lost (at the beginning, before iteration 0)"


@pytest.mark.parametrize("tail", [b"", b'{"n":1,"rows":[[', b"\n"])
def test_a_journal_is_appended_to_after_what_is_whole(path, tail):
    whole = written(path, [row(0)], [row(1)])
    path.write_bytes(whole.rstrip(b"\n") + (tail if tail != b"" else b"\x0b") if tail != b"\n" else whole)
    if tail.startswith(b"{"):
        path.write_bytes(whole + tail)
    journal = MetricsLog(path)
    journal.resume({"study": {"runs": 3}}, read(path))
    journal.append([row(2)])
    journal.close()
    found = read(path)
    assert not found.damage and [each["iteration"] for each in found.rows] == [0, 1, 2]
    assert found.header == {"study": {"runs": 3}}


def test_names_of_columns_are_written_once(path):
    journal = MetricsLog(path, columns=tuple(row(0, loss=1.0)))
    journal.begin({}, (row(k, loss=0.1 * k) for k in range(2500)))
    journal.append([row(2500, loss=None)])
    journal.close()
    assert path.read_bytes().count(b'"loss"') == 1
    found = read(path).rows
    assert [each["iteration"] for each in found] == list(range(2501))
    assert found[7] == row(7, loss=0.1 * 7) and found[2500]["loss"] is None


def test_a_row_that_was_measured_again_counts_as_it_was_measured_last(path):
    written(path, [row(0, loss=1.0), row(1, loss=2.0)], [row(1, loss=3.0)])
    assert [(found["iteration"], found["loss"]) for found in read(path).rows] == [(0, 1.0), (1, 3.0)]


@pytest.mark.parametrize("content", [b"", b"\n", b"nonsense\n", b'{"header": 1}\t00000000\n'])
def test_a_file_that_is_no_journal_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not begin with what the run is"):
        read(path)


def test_a_new_journal_takes_the_place_of_another_in_one_go(path):
    written(path, [row(0)])
    journal = MetricsLog(path)
    journal.begin({"study": {"runs": 2}}, [row(5)], at=5)
    journal.append([row(6)], at=6)
    found = read(path)  # while it is being written
    assert (found.header["study"], [each["iteration"] for each in found.rows]) == ({"runs": 2}, [5, 6])
    journal.close()


def test_lines_are_forced_onto_the_device_once_a_second(path, monkeypatch):
    now, forced = [0.0], []
    journal = MetricsLog(path, clock=lambda: now[0])
    journal.begin({}, [])
    monkeypatch.setattr("os.fsync", forced.append)
    for now[0] in (0.0, 0.4, 0.9, 1.1, 1.2, 5.0):
        journal.append([row(0)])
        assert read(path).rows  # it is in the file at once
    assert len(forced) == 3
    journal.close()
