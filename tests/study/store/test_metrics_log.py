"""The log of metrics: everything that was written whole is read back exactly, and nothing else."""

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl.analysis import METRICS, MetricsRow
from dspodfl.errors import DataError
from dspodfl.study.store.layout import METRICS_LOG
from dspodfl.study.store.metrics_log import MetricsLog, _line, header, path_in, read

COUNTS = {"sgd_steps": 0, "link_uses": 0, "bytes": 0}


def row(iteration, **values):
    return MetricsRow.of({"algorithm": "dgd", "seed": 0, "iteration": iteration} | COUNTS | values)


@pytest.fixture
def path(tmp_path):
    return tmp_path / METRICS_LOG


def written(path, *batches):
    log = MetricsLog(path)
    log.begin({"study": {"runs": 1}}, [])
    for n, batch in enumerate(batches):
        log.append(batch, at=n)
    log.close()
    return path.read_bytes()


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none(), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**62), min_size=5, max_size=5),
)
def test_numbers_come_back_to_the_last_bit(losses, counts):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / METRICS_LOG
        rows = [row(n, loss=loss, bytes=counts[n]) for n, loss in enumerate(losses)]
        written(place, *([each] for each in rows))
        assert list(read(place).rows) == rows


def test_every_line_is_strict_json_and_every_row_has_every_column(path):
    def refuse(token):
        raise AssertionError(token)

    content = written(path, [row(0, loss=math.inf, accuracy=-math.inf), row(1, loss=math.nan)])
    first, *rows = [json.loads(line, parse_constant=refuse) for line in content.decode().splitlines()]
    assert (first["kind"], first["format"], first["header"]) == ("metrics", 1, {"study": {"runs": 1}})
    assert [tuple(found)[1 : 1 + len(METRICS)] for found in rows] == [METRICS, METRICS]
    assert [found["loss"] for found in rows] == [None, None] and rows[0]["accuracy"] is None
    assert [found["n"] for found in rows] == [0, 1]
    assert "study" not in rows[0] and rows[1]["study"] == {"at": 0}  # once an evaluation


def test_what_is_not_finite_is_null_in_the_header_too(path):
    log = MetricsLog(path)
    log.begin({"config": {"until": math.inf, "list": [1.0, math.nan]}}, [])
    log.close()
    assert header(path) == {"config": {"until": None, "list": [1.0, None]}}


def test_a_torn_tail_is_left_out_wherever_it_is_torn(path):
    whole = written(path, [row(0)], [row(1)], [row(2)])
    lines = whole.splitlines(keepends=True)
    first = len(lines[0])
    for end in range(first, len(whole) + 1):
        path.write_bytes(whole[:end])
        complete = sum(1 for n in range(1, 5) if len(b"".join(lines[:n])) - 1 <= end) - 1  # the break says nothing
        assert [found["iteration"] for found in read(path).rows] == [0, 1, 2][:complete]


@pytest.mark.parametrize("how", ["a value", "the line break before", "the line break after", "the sum", "cut short"])
def test_a_line_that_is_damaged_in_the_middle_is_counted_and_what_follows_it_is_read(path, how):
    lines = written(path, [row(0), row(0, seed=1)], [row(1)], [row(2)]).splitlines(keepends=True)
    lines[2] = lines[2].replace(b"\n", b"\x0b") if how == "the line break before" else lines[2]
    lines[3] = {
        "a value": lines[3].replace(b'"seed":0', b'"seed":3'),
        "the line break after": lines[3].replace(b"\n", b"\x0b"),
        "the sum": lines[3].replace(b'"crc32"', b'"crc33"'),
        "cut short": lines[3][:20] + b"\n",
    }.get(how, lines[3])
    path.write_bytes(b"".join(lines))
    found = read(path)
    (damage,) = found.damage
    if how == "the line break before":
        assert [each["iteration"] for each in found.rows] == [0, 2]
        said = "line 3 damaged, 2 rows are lost (after iteration 0, before iteration 2)"
    elif how == "the line break after":
        assert [each["iteration"] for each in found.rows] == [0, 0]
        said = "line 4 damaged, an unknown number of rows is lost (after iteration 0, at the end)"
    else:
        assert [each["iteration"] for each in found.rows] == [0, 0, 2]
        said = "line 4 damaged, 1 row is lost (after iteration 0, before iteration 2)"
        assert found.latest == {"at": 2}
    assert str(damage) == f"{METRICS_LOG}: {said}"


def test_every_flipped_bit_is_counted_or_changes_nothing(path):
    content = written(path, [row(0, loss=0.25)], [row(1, loss=0.5)], [row(2, loss=1.0)])
    rows = read(path).rows
    for place in range(0, 8 * len(content), 13):  # every bit of a byte, at some place
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        found = read(path)
        assert found.damage or found.rows == rows, place


def test_a_log_whose_first_line_is_damaged_has_its_rows(path):
    content = written(path, [row(0), row(1)])
    path.write_bytes(content.replace(b'"study":{"runs"', b'"Study":{"runs"'))
    found = read(path)
    assert found.header is None and header(path) is None and list(found.rows) == [row(0), row(1)]
    said = "line 1 damaged, 0 rows are lost (at the beginning, before iteration 0)"
    assert str(found.damage[0]) == f"{METRICS_LOG}: {said}"


def test_a_later_format_is_refused(path):
    path.write_bytes(_line({"kind": "metrics", "format": 2, "n": 0, "header": {}}))
    for reader in (read, header):
        with pytest.raises(DataError, match="written by a later version of dspodfl"):
            reader(path)


def test_the_log_of_version_0_1_is_read_where_there_is_no_other(tmp_path):
    assert path_in(tmp_path).name == METRICS_LOG
    (tmp_path / "metrics.journal").touch()
    assert path_in(tmp_path).name == "metrics.journal"
    (tmp_path / METRICS_LOG).touch()
    assert path_in(tmp_path).name == METRICS_LOG


@pytest.mark.parametrize("tail", [b"", b'{"n":2,"algor', b"\n"])
def test_a_log_is_appended_to_after_what_is_whole(path, tail):
    whole = written(path, [row(0)], [row(1)])
    path.write_bytes(whole.rstrip(b"\n") + (tail if tail != b"" else b"\x0b") if tail != b"\n" else whole)
    if tail.startswith(b"{"):
        path.write_bytes(whole + tail)
    log = MetricsLog(path)
    log.resume({"study": {"runs": 3}}, read(path))
    log.append([row(2)])
    log.close()
    found = read(path)
    assert not found.damage and [each["iteration"] for each in found.rows] == [0, 1, 2]
    assert found.header == {"study": {"runs": 3}}


def test_a_row_that_was_measured_again_counts_as_it_was_measured_last(path):
    written(path, [row(0, loss=1.0), row(1, loss=2.0)], [row(1, loss=3.0)])
    assert [(found["iteration"], found["loss"]) for found in read(path).rows] == [(0, 1.0), (1, 3.0)]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"nonsense\n", b'{"header": 1}\t00000000\n', b'{"header":{},"crc32":"00000000"}\n']
)
def test_a_file_that_is_no_log_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not begin with what the run is"):
        read(path)


def test_a_new_log_takes_the_place_of_another_in_one_go(path):
    written(path, [row(0)])
    log = MetricsLog(path)
    log.begin({"study": {"runs": 2}}, [row(5)], at=5)
    log.append([row(6)], at=6)
    found = read(path)  # while it is being written
    assert (found.header["study"], [each["iteration"] for each in found.rows]) == ({"runs": 2}, [5, 6])
    log.close()


def test_lines_are_forced_onto_the_device_once_a_second(path, monkeypatch):
    now, forced = [0.0], []
    log = MetricsLog(path, clock=lambda: now[0])
    log.begin({}, [])
    monkeypatch.setattr("os.fsync", forced.append)
    for now[0] in (0.0, 0.4, 0.9, 1.1, 1.2, 5.0):
        log.append([row(0)])
        assert read(path).rows  # it is in the file at once
    assert len(forced) == 3
    log.close()
