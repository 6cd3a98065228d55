"""The journal: everything that was written whole is read back exactly, and nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl.journal import JOURNAL, Journal, read

ROW = {"algorithm": "dgd", "seed": 0, "iteration": 0}


def row(iteration, **values):
    return ROW | {"iteration": iteration} | values


@pytest.fixture
def path(tmp_path):
    return tmp_path / JOURNAL


def written(path, *batches):
    journal = Journal(path)
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
        complete = sum(1 for n in range(1, 5) if len(b"".join(lines[:n])) <= end) - 1
        assert [found["iteration"] for found in read(path).rows] == [0, 1, 2][:complete]


def test_what_follows_a_damaged_line_is_left_out(path):
    lines = written(path, [row(0)], [row(1)], [row(2)]).splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"seed": 0', b'"seed": 1')
    path.write_bytes(b"".join(lines))
    found = read(path)
    assert [each["iteration"] for each in found.rows] == [0]
    assert found.latest == {"at": 0}


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
    journal = Journal(path)
    journal.begin({"study": {"runs": 2}}, [row(5)], at=5)
    journal.append([row(6)], at=6)
    found = read(path)  # while it is being written
    assert (found.header["study"], [each["iteration"] for each in found.rows]) == ({"runs": 2}, [5, 6])
    journal.close()


def test_lines_are_forced_onto_the_device_once_a_second(path, monkeypatch):
    now, forced = [0.0], []
    journal = Journal(path, clock=lambda: now[0])
    journal.begin({}, [])
    monkeypatch.setattr("os.fsync", forced.append)
    for now[0] in (0.0, 0.4, 0.9, 1.1, 1.2, 5.0):
        journal.append([row(0)])
        assert read(path).rows  # it is in the file at once
    assert len(forced) == 3
    journal.close()
