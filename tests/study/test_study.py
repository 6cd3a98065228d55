"""A study is settings × algorithms: which runs share what, and in which order they are."""

from dataclasses import replace

import numpy as np
import pytest
from tests.edge import tiny
from tests.teams import Threads

from dspodfl.study import UserInputs, WorkSplit, build, joined, release_data
from dspodfl.study.work_split import split_work


def made(**changes):
    return build(tiny(algorithms=["dspodfl", "dgd"], seeds=3, **changes))[1]


def test_runs_are_algorithms_times_settings_algorithm_by_algorithm():
    study = made()
    assert [(run.algorithm, run.seed) for run in study.runs] == [(a, s) for a in ("dspodfl", "dgd") for s in range(3)]
    assert study.setting_of == [0, 1, 2, 0, 1, 2]
    assert len(study.rules) == len(study.runs)
    for run, place in zip(study.runs, study.setting_of, strict=True):
        setting = study.settings[place]
        assert run.rates is setting.rates and run.topology is setting.topology and run.data is setting.data
        assert run.learning_rate is setting.learning_rate and run.budget is setting.budget
        assert (run.cap, run.need) == setting.caps[run.algorithm]
        assert run.link_bytes == 8 * study.model.parameters and run.link_models == 1.0


def test_runs_of_a_rule_that_sends_two_models_carry_twice_the_bytes_and_take_twice_the_delay():
    _, study = build(tiny(algorithms=["dspodfl", "gradient_tracking"]))
    one, two = study.runs
    assert (one.link_bytes, one.link_models) == (8 * study.model.parameters, 1.0)
    assert (two.link_bytes, two.link_models) == (16 * study.model.parameters, 2.0)


def test_joined_studies_keep_their_runs_with_their_own_settings():
    studies = [made(), build(tiny(algorithms=["rg"], seeds=2))[1], made()]
    whole = joined(studies)
    assert [(r.algorithm, r.seed) for r in whole.runs] == [(r.algorithm, r.seed) for s in studies for r in s.runs]
    apart = [run for study in studies for run in study.runs]
    assert all(one.rates is other.rates and one.cap == other.cap for one, other in zip(whole.runs, apart, strict=True))
    assert whole.setting_of == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]
    assert joined([whole]).setting_of == whole.setting_of
    assert whole.groups == [0] * len(whole.runs)


def split_by_clients(study, rank, ranks=2):
    owners = [np.arange(run.clients) % ranks for run in study.runs]
    return WorkSplit(Threads(rank, ranks, {}), "clients", "", [], owners)


@pytest.mark.parametrize("rank", [0, 1])
def test_samples_of_other_ranks_are_released_and_runs_of_a_seed_still_share(rank):
    study = made()
    left = release_data(study, split_by_clients(study, rank))
    assert left.setting_of == study.setting_of
    for run, place, before in zip(left.runs, left.setting_of, study.runs, strict=True):
        assert run.data is left.settings[place].data
        assert run.rates is before.rates
        assert run.data.number.tolist() == list(range(rank, run.clients, 2))
        assert len(run.data.dataset.x_train) < len(before.data.dataset.x_train)
        for shard, client in zip(run.data.shards, run.data.number, strict=True):
            whole = before.data.dataset.x_train[before.data.shards[client]]
            assert np.array_equal(run.data.dataset.x_train[shard], whole)


def test_nothing_is_released_where_runs_are_split_or_nothing_is():
    study = made()
    assert release_data(study, WorkSplit.alone()) is study
    assert release_data(study, replace(WorkSplit.alone(), kind="runs")) is study


def test_one_process_has_everything():
    assert split_work("auto", made(), WorkSplit.alone().team).kind == "alone"


def test_seeds_that_share_their_data_share_the_minimizer():
    data = made().settings[0].data
    config = tiny(model={"name": "logistic", "l2": 0.1}, seeds=2)
    study = build(config, UserInputs(data=data))[1]
    first, second = study.settings
    assert first.data is second.data
    assert first.data.optimum is not None and data.optimum is None
