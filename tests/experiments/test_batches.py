"""Cells that can be stacked advance together, as many at a time as are worth it."""

from tests.edge import TINY

from dspodfl.config.grid import Axis, cells
from dspodfl.experiments import batches
from dspodfl.study import build

LENGTHS = Axis.of("train.iterations", [4, 8, 12])


def test_no_stack_has_fewer_runs_than_there_are_ranks_where_that_can_be(monkeypatch):
    monkeypatch.setitem(batches.FLOP_PER_BATCH, "cpu", 1.0)
    made = [(cell, build(cell.config)[1]) for cell in cells(TINY, [LENGTHS])]  # three cells of two runs each
    assert [len(batch) for batch in batches.in_batches(made, "cpu")] == [1, 1, 1]
    assert [len(batch) for batch in batches.in_batches(made, "cpu", 3)] == [3]
    assert [len(batch) for batch in batches.in_batches(made, "cpu", 2)] == [1, 1, 1]


def test_only_studies_whose_models_and_batches_are_alike_are_stacked():
    sizes = cells(TINY, [Axis.of("train.batch_size", [1, 2, 1])])
    made = [(cell, build(cell.config)[1]) for cell in sizes]
    assert [[cell.point["train.batch_size"] for cell, _ in batch] for batch in batches.in_batches(made, "cpu")] == [
        [1, 1],
        [2],
    ]


def test_a_batch_is_one_study_of_all_its_runs():
    made = [(cell, build(cell.config)[1]) for cell in cells(TINY, [LENGTHS])]
    batch = batches.CellBatch.of(made)
    assert len(batch.study.runs) == len(batch.study.rules) == len(batch.owners) == sum(len(s.runs) for _, s in made)
    assert batch.study.longest == 12 and batch.digests == [cell.digest for cell, _ in made]
