"""Where runs are evaluated, from their events alone: as the loop that trains them says."""

import pytest
from tests.edge import on_the_cpu, tiny

from dspodfl.engine import Stack, evaluated_iterations, foreseen, simulate
from dspodfl.problem import Problem
from dspodfl.study.builder import build

UNTIL = [{"iterations": 7}, {"until": {"delay": 20.0}}, {"until": {"bytes": 3000}}]


def studied(until, **changes):
    train = {"batch_size": 2, "iterations": 60, **until}
    return build(tiny(seeds=2, train=train, **changes))[1]


def due(study, over=None):
    """Iteration -> the runs that are evaluated there, and what they have counted."""
    where = {"every": study.every, "at_delay": study.at_delay, "points": study.points}
    found = foreseen(Stack(study.runs), **where, over=set() if over is None else over)
    return {at.iteration: (at.runs, [vars(counters) for counters in at.counters]) for at in found}


@pytest.mark.parametrize("until", UNTIL)
def test_evaluations_and_counters_are_those_of_the_loop(until, monkeypatch):
    on_the_cpu(monkeypatch)
    study = studied(until, eval={"every": 3, "at_delay": [5.0, 9.0]})
    stack = Stack(study.runs)
    problem = Problem(study.model, [(run.seed, run.data) for run in study.runs], batch_size=2)
    most = max(run.cap for run in study.runs)
    where = {"every": study.every, "at_delay": study.at_delay, "points": study.points}
    trained = {
        at.iteration: (at.runs, [vars(counters) for counters in at.counters])
        for at in simulate(stack, problem, study.rules[0], study.initial(study.runs), iterations=most, **where)
    }
    assert due(study) == trained and len(trained) > 3
    for r, run in enumerate(study.runs):
        mine = [k for k, (runs, _) in trained.items() if r in runs]
        assert evaluated_iterations(run, **where) == mine


def test_runs_that_are_over_are_not_evaluated_and_those_that_end_are_added():
    study, over = studied({"iterations": 6}), {0}
    found = due(study, over)
    assert [runs for k, (runs, _) in found.items() if k] == [[1, 2, 3]] * 3
    assert over == {0, 1, 2, 3}
