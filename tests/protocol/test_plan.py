"""What a node knows before the first message."""

import pytest
from tests.protocol.nodes import plan

from dspodfl.errors import InputError


def test_positions_follow_the_firings():
    made = plan(fires=lambda k: (1,) if k in (2, 5) else (), phases=lambda k: k, sizes=(1, 1, 1, 1, 1))
    assert made.first(1, 0) == (2, 0)
    assert made.after(1, (2, 0)) == (2, 1)
    assert made.after(1, (2, 1)) == (5, 0)
    assert made.after(1, (5, 4)) is None
    assert made.first(2, 0) is None
    assert made.exists(1, 5, 4) and not made.exists(1, 5, 5) and not made.exists(2, 5, 0)
    assert not made.exists(1, -1, 0) and not made.exists(1, 10, 0) and not made.exists(1, 2, -1)
    assert made.firing(10) == ()


def test_firings_are_computed_once():
    calls = []
    made = plan(fires=lambda k: calls.append(k) or (1,))
    for _ in range(3):
        made.firing(4)
    assert calls == [4]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"retain": 1}, "nodes.retain = 1: must be at least 2"),
        ({"retain": 2, "phases": 2}, "at least 3"),
        ({"retain": 299, "sizes": (100,), "phases": 2}, "at least 300"),
        ({"retain": 7, "sizes": (1, 3), "phases": lambda k: 1}, None),
        ({"retain": 6, "sizes": (1, 3), "phases": lambda k: 1}, "at least 7"),
        ({"neighbours": (0, 1)}, "distinct nodes other than 0"),
        ({"neighbours": (1, 1)}, "distinct nodes other than 0"),
        ({"keep": 0}, "checkpoint.keep"),
    ],
    ids=str,
)
def test_plans_that_cannot_work_are_refused(settings, why):
    if why is None:
        assert plan(**settings).retain == settings["retain"]
        return
    with pytest.raises(InputError, match=why):
        plan(**settings)
