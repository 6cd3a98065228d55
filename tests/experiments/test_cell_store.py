"""Finished cells are found again under their digests, and a damaged one is named."""

import pytest
from tests.edge import TINY, on_the_cpu

from dspodfl.config.grid import Axis, cells
from dspodfl.errors import DataError
from dspodfl.experiments import Sweep
from dspodfl.experiments.cell_store import ABOUT, CellStore

SIZES = Axis.of("train.batch_size", [1, 2])


@pytest.fixture
def finished(tmp_path, monkeypatch):
    on_the_cpu(monkeypatch)
    run = Sweep(cells(TINY, [SIZES]), [SIZES.name], tmp_path / "cells")
    list(run)
    return run


def test_what_is_written_is_read_with_what_it_is(finished):
    found = CellStore(finished.store).read(finished.cells)
    assert list(found) == [cell.digest for cell in finished.cells]
    for digest, table in found.items():
        assert table.attrs[ABOUT]["kind"] == "cell" and table.attrs[ABOUT]["digest"] == digest
        assert table["accuracy"].tolist() == finished._found[digest]["accuracy"].tolist()
    assert CellStore(finished.store).read(finished.cells[:1]).keys() == {finished.cells[0].digest}


def test_a_store_that_does_not_exist_has_no_cells(tmp_path):
    assert CellStore(tmp_path / "none").read(cells(TINY, [SIZES])) == {}


def test_a_damaged_cell_is_named_with_what_to_do(finished):
    path = finished.store / f"{finished.cells[0].digest}.parquet"
    path.write_bytes(b"nothing of ours")
    with pytest.raises(DataError, match=rf"{path.name}.*delete it, and the cell is run again"):
        CellStore(finished.store).read(finished.cells)


def test_cells_that_cannot_be_written_leave_those_before(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"could not be written.*the 3 cells that were finished before are kept"):
        CellStore(tmp_path / "file").write({}, 3)
