"""Faults that processes meet: killed, stopped, cut off, out of disk. The models stay those of the plain loop."""

import random
import signal
import time

import pytest
from tests.nodes.harness import config
from tests.nodes.processes import Cluster, until


@pytest.fixture
def small():
    return config("gradient_tracking", iterations=60, clients=4, checkpoint={"every_iterations": 7})


def kill_at_random(cluster, chance, *nodes):
    """Kill nodes at a random instant of the run and start them again."""
    k = chance.randrange(1, cluster.config.train.iterations - 10)
    until(lambda: cluster.reached(nodes[0], k))
    time.sleep(chance.random() * 0.02)
    cluster.kill(*nodes)
    for i in nodes:
        cluster.start(i, pause=0.01)


@pytest.mark.parametrize("nodes", [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 1)], [(2,), (2,), (2,)]])
def test_nodes_that_are_killed_come_back_to_the_same_models(nodes, farm, small, tmp_path):
    chance = random.Random(str(nodes))
    cluster = Cluster(farm, tmp_path, small).start_all(pause=0.01)
    for together in nodes:
        kill_at_random(cluster, chance, *together)
    cluster.assert_finished()
    assert any(cluster.events(i, "resumed") for together in nodes for i in together)
