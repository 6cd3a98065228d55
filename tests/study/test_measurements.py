"""What a study has come to: told by each rank, known to the first, and carried over from a checkpoint."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.edge import tiny
from tests.study.test_waves import in_waves
from tests.teams import together

from dspodfl import InputError, Simulation
from dspodfl.analysis import MetricsRow
from dspodfl.engine import LocalTransport
from dspodfl.study.builder import build
from dspodfl.study.measurement import Hooks
from dspodfl.study.measurements import StudyProgress
from dspodfl.study.runner import measure
from dspodfl.study.store.checkpoint import CheckpointStore, load
from dspodfl.study.tables import typed
from dspodfl.study.waves import Plan
from dspodfl.study.work_split import WorkSplit

CPU, LAST = torch.device("cpu"), 4
STUDY = SimpleNamespace(
    runs=[SimpleNamespace(algorithm=name, seed=seed) for seed in (0, 1) for name in ("dspodfl", "dgd")],
    iterations=LAST,
    model=SimpleNamespace(unflatten=lambda models: {"w": models}),
    ended_by=lambda run, row: "budget" if row["iteration"] == LAST else None,
)
"""Four runs, of which nothing but the names is asked."""


def divided(team, kind):
    return WorkSplit(team, kind, "", [], [])


def looked_at(iteration, wave, plan, models=None):
    """A measurement of every run of a wave; the models of a run are its number, and the iteration."""
    names = [(STUDY.runs[r].algorithm, STUDY.runs[r].seed) for r in wave]
    rows = [MetricsRow.of({"algorithm": name, "seed": seed, "iteration": iteration}) for name, seed in names]
    accuracies = [torch.full((2,), 0.1 * iteration) for _ in wave]
    own = models or (lambda r: torch.tensor([[r, iteration]]))
    about = {"iteration": iteration, "over": iteration == LAST, "plan": plan, "models": own}
    places = dict.fromkeys(wave, about.get("iteration", 0))
    return SimpleNamespace(rows=rows, accuracies=accuracies, runs=wave, wave=wave, places=places, waiting=(), **about)


def planned(*waves):
    return Plan((), waves, 1, 1, 1)


def numbers(models):
    return {name: found["w"].tolist() for name, found in models.items()}


# --- ranks that meet ------------------------------------------------------------------------------------------


def test_what_ranks_measure_is_known_to_the_first_of_them_once_they_have_met():
    def work(team):
        findings, mine = StudyProgress(STUDY, divided(team, "runs")), [2 * team.rank, 2 * team.rank + 1]
        for k in (2, LAST):
            findings.advance(k, len(mine), seconds=k)
            findings.add(looked_at(k, mine, planned([0, 1, 2, 3])), seconds=k)
        before, fresh = len(findings.known.rows), len(findings.meet(over=True).rows)
        assert findings.meet(over=True).rows == []  # there is nothing new
        return before, fresh, findings, findings.models()

    (before, fresh, first, models), (_, elsewhere, other, _) = together(2, work)
    assert (before, fresh, elsewhere) == (0, 8, 0)
    assert first.complete and not other.complete
    assert sorted(first.known.accuracies) == [0, 1, 2, 3]
    assert first.effort == {"wall_seconds": LAST, "run_iterations": 2 * 4}
    assert list(numbers(models).values()) == [[[r, LAST]] for r in range(4)]


def test_where_clients_are_split_every_rank_knows_the_rows_and_the_first_keeps_the_models():
    def work(team):
        findings = StudyProgress(STUDY, divided(team, "clients"))
        team.sent += 10 * (team.rank + 1)
        assembled = lambda r: team.all_reduce_sum(torch.tensor([[r]]))  # noqa: E731  # all ranks have to ask
        findings.add(looked_at(LAST, [0, 1], planned([0, 1], [2, 3]), assembled), seconds=1.0)
        findings.meet(over=True)
        return findings

    first, other = together(2, work)
    assert len(first.known.rows) == len(other.known.rows) == 2
    assert {r: models.item() for r, models in first.known.finished.items()} == {0: 0, 1: 2}
    assert other.known.finished == {}
    assert first.sent == other.sent == 30


# --- waves ----------------------------------------------------------------------------------------------------


def test_models_of_a_wave_are_kept_where_another_follows():
    plan = planned([0, 1], [2, 3])
    findings = StudyProgress(STUDY, divided(LocalTransport(), "alone"))
    for found in (looked_at(LAST, [0, 1], plan), looked_at(2, [2, 3], plan.finished())):
        findings.add(found, seconds=1.0)
        findings.meet(found.over)
    assert sorted(findings.known.finished) == [0, 1]
    assert list(numbers(findings.models()).values()) == [[[0, LAST]], [[1, LAST]], [[2, 2]], [[3, 2]]]
    assert not findings.complete


def test_models_of_the_only_wave_are_not_copied_aside():
    findings = StudyProgress(STUDY, divided(LocalTransport(), "alone"))
    findings.add(looked_at(LAST, [0, 1, 2, 3], planned([0, 1, 2, 3])), seconds=1.0)
    findings.meet(over=True)
    assert findings.complete and findings.known.finished == {}
    assert len(findings.models()) == 4


# --- from a checkpoint ----------------------------------------------------------------------------------------


def gone_through(study, start=None, store=None):
    """What a real study has come to, all of its events recorded; each look at it may be put away in a store."""
    division = WorkSplit.alone()
    findings = StudyProgress(study, division, start, record=True)
    hooks = Hooks(lambda k, runs: findings.advance(k, runs, findings.seconds + 1.0), findings.recorder.add)
    for found in measure(study, CPU, hooks, findings.position(), division):
        findings.add(found, findings.seconds)
        findings.meet(found.over)
        if store:
            store.save(findings.checkpoint({}))
    return findings


@pytest.fixture
def save_checkpoint(monkeypatch, tmp_path):
    """A study in two waves of a run each, what it came to, and the checkpoints of all looks at it but the last."""
    in_waves(monkeypatch, 2)
    _, study = build(tiny())
    store = CheckpointStore(tmp_path, keep=10)
    whole = gone_through(study, store=store)
    return study, whole, [load(path) for path in store.committed()[:0:-1]]


def test_what_is_taken_up_from_any_checkpoint_comes_to_the_same(save_checkpoint):
    study, whole, starts = save_checkpoint
    rows, models, events = typed(whole.known.rows), whole.models(), whole.events()
    for start in starts:
        again = gone_through(study, start)
        assert again.complete and typed(again.known.rows).equals(rows)
        assert again.effort == whole.effort
        found, fired = again.models(), again.events()
        for name in whole.names:
            assert all(torch.equal(found[name][key], values) for key, values in models[name].items())
            assert np.array_equal(fired[name][0].v, events[name][0].v)
            assert np.array_equal(fired[name][0].v_hat, events[name][0].v_hat)


def test_what_is_taken_up_is_what_was_known_then(save_checkpoint):
    study, whole, starts = save_checkpoint
    for looks, (start, ran) in enumerate(zip(starts, [0, 2, 4, 4, 6], strict=True), start=1):
        findings = StudyProgress(study, WorkSplit.alone(), start, record=True)
        assert len(findings.known.rows) == looks and not findings.complete
        assert findings.effort == {"wall_seconds": float(ran), "run_iterations": ran}
        fired = {name: events.v for name, (events, _) in findings.events().items()}
        assert sum(map(len, fired.values())) == ran
        assert all(np.array_equal(v, whole.events()[name][0].v[: len(v)]) for name, v in fired.items())


def test_a_checkpoint_at_the_end_of_a_wave_stands_at_the_beginning_of_the_next(save_checkpoint):
    study, _, (*_, start, _, _) = save_checkpoint
    assert (len(start.plan.done), len(start.plan.left), start.iteration) == (1, 1, 0)
    position = StudyProgress(study, WorkSplit.alone(), start).position()
    assert position.reached == dict.fromkeys(start.plan.done[0], study.iterations)
    assert list(position.pieces) == []


def test_before_anything_is_measured_there_is_no_checkpoint():
    findings = StudyProgress(STUDY, divided(LocalTransport(), "alone"))
    assert findings.position() is None and not findings.complete
    with pytest.raises(InputError, match="at least one evaluation"):
        findings.checkpoint({})


def test_models_of_a_study_in_waves_whose_clients_are_split_are_those_of_one_process(monkeypatch):
    """The ranks that keep none must not ask for what the first has put away already."""
    in_waves(monkeypatch, 2)

    def work(team):
        simulation = Simulation(tiny(scale={"split": "clients"}), device="cpu", team=team)
        for _ in simulation:
            pass
        return simulation.result()

    alone, ours = work(LocalTransport()), together(2, work)[0]
    for algorithm in alone.config["algorithms"]:
        for one, other in zip(alone.models(algorithm, 0), ours.models(algorithm, 0), strict=True):
            assert all(torch.allclose(one[name], other[name], rtol=0, atol=2e-6) for name in one)


def test_events_of_runs_on_other_ranks_are_those_of_one_process():
    config = tiny(seeds=2, algorithms=["dspodfl", "rg"], scale={"split": "runs"})

    def work(team):
        simulation = Simulation(config, device="cpu", team=team, record_events=True)
        for _ in simulation:
            pass
        return simulation.result().events

    alone, ours = work(LocalTransport()), together(2, work)[0]
    assert alone.keys() == ours.keys() and len(alone) == 4
    for key, (events, _) in alone.items():
        assert np.array_equal(events.v, ours[key][0].v) and np.array_equal(events.v_hat, ours[key][0].v_hat)
