"""The learning problem in exact integers notices every message."""

import pytest

from dspodfl.protocol.exact import Problem, initial, messages, mixed, stepped

PROBLEM = Problem(3, ((0, 1), (0, 2), (1, 2)), ((0, 1, 2), (), (2,)), phases=2)


def test_neighbours_and_firings_are_in_the_order_of_the_edges():
    assert PROBLEM.neighbours(1) == (0, 2)
    assert PROBLEM.firing(2) == [(0, 1), (), (1,)]


def test_the_plain_loop_by_hand():
    models = PROBLEM.plain_loop()
    assert [len(row) for row in models] == [4, 4, 4]
    assert models[1][2] == stepped(models[1][1], 1, 1)
    assert models[0][3] == stepped(models[0][2], 0, 2)
    start = [initial(i) for i in range(3)]
    sent = [messages(start[i], PROBLEM.firing(i)[0]) for i in range(3)]
    once = [mixed(start[i], i, 0, {j: sent[j][i] for j in PROBLEM.firing(i)[0]}) for i in range(3)]
    sent = [messages(once[i], PROBLEM.firing(i)[0]) for i in range(3)]
    assert models[0][1] == stepped(mixed(once[0], 0, 1, {j: sent[j][0] for j in (1, 2)}), 0, 0)


@pytest.mark.parametrize(
    "received", [{2: (5, 6), 1: (3, 4)}, {1: (3, 4)}, {1: (3, 4), 2: (5, 7)}, {1: (5, 6), 2: (3, 4)}, {}], ids=str
)
def test_another_order_or_message_is_another_model(received):
    assert mixed((1, 2), 0, 0, received) != mixed((1, 2), 0, 0, {1: (3, 4), 2: (5, 6)})


def test_a_message_depends_on_its_receiver():
    sent = messages((1, 2), (3, 4))
    assert sent[3] != sent[4]
