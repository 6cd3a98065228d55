"""The seeded simulator: whatever the faults, models are those of the plain loop and every node ends."""

import pytest

from dspodfl.protocol.schedules import Schedule, Settings, check

SCHEDULES = 10_000
BLOCKS = 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_schedule_holds(block):
    """10,000 schedules of 250 random steps, and as many more until every node has ended."""
    size = SCHEDULES // BLOCKS
    count = {}
    for seed in range(block * size, (block + 1) * size):
        verdict = check(seed)
        assert verdict.violation is None, f"{verdict.violation}; python -m dspodfl.protocol.check --seed {seed}"
        assert verdict.actions >= 60
        for action, number in verdict.count.items():
            count[action] = count.get(action, 0) + number
    faults = {"crash", "cut", "lose", "duplicate", "stale", "partition", "drain", "full disk", "timer", "closed"}
    assert faults <= count.keys()
    assert count["crash"] > size / 2


@pytest.mark.parametrize("seed", range(20))
def test_long_schedules_hold(seed):
    verdict = check(seed, Settings(steps=2000, faults=0.1, retain=2))
    again = f"python -m dspodfl.protocol.check --seed {seed} --steps 2000 --faults 0.1 --retain 2"
    assert verdict.violation is None, f"{verdict.violation}; {again}"


def test_a_seed_gives_one_schedule():
    first, second, other = check(5, record=True), check(5, record=True), check(6, record=True)
    assert first.log == second.log
    assert first.log != other.log
    assert check(5).count == first.count


def test_without_faults_nothing_is_asked_for():
    """Sending ahead is what makes NEED rare: without faults a run sends none, and each STATE once."""
    for seed in range(20):
        log = check(seed, Settings(faults=0.0, steps=0), record=True).log
        assert not [line for line in log if "Need(" in line]
        states = [
            line.split(": ", 1)[0].split("frame ")[1] + line.partition("State")[2] for line in log if "State(" in line
        ]
        assert len(states) == len(set(states)) > 0


def test_without_faults_nobody_waits_at_the_end():
    """Every neighbour says BYE, so that no node has to wait for one that has gone."""
    for seed in range(20):
        schedule = Schedule(seed, Settings(faults=0.0, steps=0))
        schedule.settle()
        assert schedule.world.now < 5
        assert "timer" not in schedule.world.count
