"""The models that a node writes: every row is whole or missing, wherever its process was killed."""

import json
import math
import os
import struct
import zlib

import numpy as np
import pytest

from dspodfl import DataError
from dspodfl.nodes import Header, ModelsWriter, StoredModel, StoredModels

HEADER = Header(id=3, run_id="hospital", algorithm="dspodfl", seed=1, parameters=3)
FIRST = len(HEADER.serialized())


def model(k, parameters=3):
    return StoredModel(np.arange(parameters, dtype=np.float32) + k)


def written(folder, ks=(0, 5, 10), header=HEADER, **options):
    """A folder of models with rows of some iterations."""
    writer = ModelsWriter(folder, header, **options)
    notes = [writer.append(k, model(k)) for k in ks]
    writer.close()
    return folder / f"{header.name}.rows", notes


def rows(path):
    """Iteration -> model of every row of a file that can be read."""
    found = StoredModels.read(path)
    return {k: found.at(k).model.tolist() for k in found.iterations}


def test_what_is_read_is_what_was_written(tmp_path):
    path, notes = written(tmp_path)
    assert rows(path) == {0: [0, 1, 2], 5: [5, 6, 7], 10: [10, 11, 12]} and notes == [None] * 3
    found = StoredModels.read(path)
    assert (found.header, found.diverged, found.damage, found.at(7)) == (HEADER, None, [], None)
    assert found.at(5).averaged is None and found.at(5).score is None and found.at(5).model.dtype == np.float32


def test_a_row_has_the_averaged_row_and_scores_where_there_are_such(tmp_path):
    header = Header(0, "r", "push_sum", 0, 2, vectors=2, dtype="float64")
    writer = ModelsWriter(tmp_path, header)
    writer.append(4, StoredModel(np.array([0.1, 0.2]), np.array([0.3, 0.4]), (1.5, 0.75)))
    writer.append(8, StoredModel(np.array([0.5, 0.6]), np.array([0.7, 0.8]), (2.5, math.nan)))
    writer.close()
    found = StoredModels.read(tmp_path / "push_sum-seed0.rows")
    assert (found.at(4).model.tolist(), found.at(4).averaged.tolist()) == ([0.1, 0.2], [0.3, 0.4])
    assert found.at(4).score == (1.5, 0.75)
    assert found.at(8).score[0] == 2.5 and math.isnan(found.at(8).score[1])


def test_a_process_that_is_killed_at_any_byte_loses_the_row_it_was_writing_alone(tmp_path):
    path, _ = written(tmp_path / "whole")
    content = path.read_bytes()
    assert len(content) == FIRST + 3 * HEADER.row_bytes
    for size in range(len(content) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        cut = folder / path.name
        cut.write_bytes(content[:size])
        whole = max(0, size - FIRST) // HEADER.row_bytes
        if size >= FIRST:
            assert list(rows(cut)) == [0, 5, 10][:whole] and not StoredModels.read(cut).damage
        else:
            with pytest.raises(DataError, match=r"begin like|truncated"):
                StoredModels.read(cut)
        assert cut.read_bytes() == content[:size]  # reading changes nothing
        written(folder, ks=[0, 5, 10])  # the node replays
        assert cut.read_bytes() == content


def test_a_flipped_bit_is_named_and_costs_one_row(tmp_path):
    path, _ = written(tmp_path)
    content = path.read_bytes()
    for place in range(FIRST, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        number = (place - FIRST) // HEADER.row_bytes
        found = StoredModels.read(path)
        assert found.iterations == [k for n, k in enumerate((0, 5, 10)) if n != number]
        assert found.damage == [f"{path}: row {number} is damaged (its CRC-32 differs); its model is missing"]
    written(tmp_path)  # the node replays: the missing row is at the end
    assert rows(path) == {0: [0, 1, 2], 5: [5, 6, 7], 10: [10, 11, 12]}


def test_a_damaged_header_is_an_error_to_a_reader_and_is_written_again_by_the_node(tmp_path):
    path, _ = written(tmp_path)
    content = path.read_bytes()
    for place in range(FIRST):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=str(path)):
            StoredModels.read(path)
    written(tmp_path, ks=[])
    assert path.read_bytes() == content


def test_a_header_that_promises_more_than_there_is_allocates_nothing(tmp_path):
    path = tmp_path / "x.rows"
    path.write_bytes(Header(0, "r", "a", 0, 2**60).serialized() + b"0" * 100)
    assert StoredModels.read(path).iterations == []


@pytest.mark.parametrize("change", [{"parameters": 0}, {"vectors": 3}, {"dtype": "O"}, {"id": "x"}, {"new": 1}])
def test_a_header_that_no_node_writes_is_refused(change, tmp_path):
    text = json.dumps({"kind": "models", "format": 1, **vars(HEADER), **change}).encode()
    content = struct.pack("<I", len(text)) + text
    path = tmp_path / "x.rows"
    path.write_bytes(b"dspodflm" + content + struct.pack("<I", zlib.crc32(content)))
    with pytest.raises(DataError, match="nothing that can be read"):
        StoredModels.read(path)


def test_a_row_is_written_once(tmp_path):
    path, _ = written(tmp_path)
    writer = ModelsWriter(tmp_path, HEADER)
    writer.append(5, model(99))
    writer.append(15, model(15))
    writer.sync()
    writer.close()
    assert rows(path)[5] == [5, 6, 7] and list(rows(path)) == [0, 5, 10, 15]


def test_the_models_of_another_run_are_not_touched(tmp_path):
    path, _ = written(tmp_path)
    content = path.read_bytes()
    for change, what in (
        ({"run_id": "other"}, "run_id is 'hospital', not 'other'"),
        ({"parameters": 4}, "parameters is 3"),
    ):
        with pytest.raises(DataError, match=what):
            ModelsWriter(tmp_path, Header(**{**vars(HEADER), **change}))
    assert path.read_bytes() == content


def test_vectors_of_another_shape_are_refused(tmp_path):
    writer = ModelsWriter(tmp_path, HEADER)
    for wrong in (model(0, 4), StoredModel(np.zeros(3, np.float32), np.zeros(3, np.float32))):
        with pytest.raises(ValueError, match="not those of"):
            writer.append(0, wrong)
    writer.close()


def test_beyond_the_cap_only_the_last_model_is_kept_and_it_says_so_once(tmp_path):
    cap = FIRST + 2 * HEADER.row_bytes
    path, notes = written(tmp_path, ks=(0, 5, 10, 15), cap=cap)
    assert notes[:2] == [None, None] == [notes[3], None]
    assert notes[2].endswith("bytes of models are kept; from iteration 10 on only the last")
    assert list(rows(path)) == [0, 5] and path.stat().st_size == cap
    last = path.with_suffix(".last")
    assert rows(last) == {15: [15, 16, 17]}
    _, again = written(
        tmp_path, ks=(5, 10, 15, 20), cap=cap
    )  # after a crash: what is older than the last is not wanted
    assert again[:3] == [None] * 3 and again[3] and rows(last) == {20: [20, 21, 22]}
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_the_cap_is_that_of_all_algorithms_and_seeds(tmp_path):
    written(tmp_path, ks=(0, 5))
    other = Header(**{**vars(HEADER), "seed": 2})
    path, notes = written(tmp_path, ks=(0, 5), header=other, cap=2 * FIRST + 3 * HEADER.row_bytes)
    assert list(rows(path)) == [0] and notes[1]


def test_a_damaged_last_model_is_replaced(tmp_path):
    path, _ = written(tmp_path, ks=(0, 5), cap=FIRST)
    path.with_suffix(".last").write_bytes(b"rubbish")
    written(tmp_path, ks=(10,), cap=FIRST)
    assert list(rows(path.with_suffix(".last"))) == [10]


def test_divergence_is_a_row_without_a_model(tmp_path):
    path, _ = written(tmp_path)
    writer = ModelsWriter(tmp_path, HEADER)
    writer.diverged(12)
    writer.diverged(12)
    writer.close()
    found = StoredModels.read(path)
    assert (found.diverged, found.iterations, found.at(12)) == (12, [0, 5, 10, 12], None)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path, _ = written(tmp_path)
    content, pwrite = path.read_bytes(), os.pwrite
    writer = ModelsWriter(tmp_path, HEADER)

    def full(file, view, offset):
        if len(view) <= 10:
            raise OSError(28, "No space left on device")
        return pwrite(file, view[:10], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DataError, match="No space left"):
        writer.append(15, model(15))
    assert path.read_bytes() == content
    monkeypatch.setattr(os, "pwrite", pwrite)
    writer.append(15, model(15))
    writer.close()
    assert list(rows(path)) == [0, 5, 10, 15]


def test_labels_of_any_characters_have_files_of_their_own(tmp_path):
    labels = ["a/b", "a%2Fb", "α" * 100, "α" * 99 + "β", ".."]
    headers = [Header(0, "r", label, 0, 3) for label in labels]
    paths = {written(tmp_path, header=header)[0] for header in headers}
    assert len(paths) == len(labels) and all(path.parent == tmp_path for path in paths)


def test_a_row_that_changed_since_the_file_was_read_is_missing(tmp_path):
    path, _ = written(tmp_path)
    found = StoredModels.read(path)
    path.write_bytes(path.read_bytes()[: FIRST + HEADER.row_bytes + 3])
    assert found.at(0) is not None and found.at(5) is None and found.at(10) is None
