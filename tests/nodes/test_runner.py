"""Nodes in one event loop: their models are those of the plain loop to the bit, whatever happens on the way."""

import asyncio

import pytest
from tests.nodes.harness import World, config, lossy

from dspodfl.algorithms import ALGORITHMS
from dspodfl.engine import runs_on_nodes


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_on_nodes_is_the_plain_loop_to_the_bit(name, tmp_path):
    kind = {"relay": "path", "d2": "complete", "bridge": "complete"}.get(name, "ring")
    graph = {"graph": {"kind": kind}}
    world = World(config(name, iterations=12, **graph), tmp_path)
    why = runs_on_nodes(world.study.rules[0], world.run)
    if why is not None:
        pytest.skip(why)
    outcomes = asyncio.run(asyncio.wait_for(world.all(), 60))
    assert {outcome.reason for outcome in outcomes} == {"finished"}
    world.assert_equal_to_the_plain_loop()


@pytest.mark.parametrize("seed", range(3))
def test_lost_frames_and_cut_connections_change_nothing(seed, tmp_path):
    world = World(config("gradient_tracking", iterations=15, nodes={"patience": 0.1}), tmp_path)
    world.make_transport = lossy(world, drop=0.1, cut=0.02, seed=seed)
    asyncio.run(asyncio.wait_for(world.all(), 120))
    world.assert_equal_to_the_plain_loop()
