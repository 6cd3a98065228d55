"""Faults that processes meet: killed, stopped, cut off, out of disk. The models stay those of the plain loop."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from tests.nodes.harness import config
from tests.nodes.processes import Cluster, until
from tests.nodes.relay import Relay

from dspodfl import DataError
from dspodfl.nodes.checkpoint_files import CheckpointFiles
from dspodfl.protocol import Checkpoint


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


def test_a_node_that_stands_still_for_ten_seconds_is_reconnected(farm, small, tmp_path):
    cluster = Cluster(farm, tmp_path, small, patience=0.5).start_all(pause=0.01)
    until(lambda: cluster.reached(1, 10))
    cluster.signal(1, signal.SIGSTOP)
    time.sleep(10)
    cluster.signal(1, signal.SIGCONT)
    cluster.assert_finished()
    gone = [event for i in (0, 2) for event in cluster.events(i, "disconnected")]
    assert any(event["peer"] == 1 and "no progress" in event["reason"] for event in gone)


@pytest.fixture
def relays():
    made = []
    yield made
    for relay in made:
        relay.close()


def behind_relays(cluster, relays, **how):
    """Every node is reached through a relay of its own."""
    relays += [Relay(port, **how) for port in cluster.ports]
    own = list(cluster.addresses)
    cluster.addresses = [relay.address for relay in relays]
    for i in range(cluster.clients):
        cluster.write(i, listen=own[i])
    return cluster


def test_connections_that_are_cut_in_the_middle_of_frames(farm, small, relays, tmp_path):
    cluster = behind_relays(Cluster(farm, tmp_path, small), relays).start_all(pause=0.02)
    stop = threading.Event()
    threads = [relay.cut_at_random(stop, 0.3, seed) for seed, relay in enumerate(relays)]
    until(lambda: all(cluster.reached(i, 45) for i in range(4)))
    stop.set()
    for thread in threads:
        thread.join()
    cluster.assert_finished()
    assert sum(relay.cuts for relay in relays) > 3


def test_a_slow_and_late_network_with_a_partition(farm, small, relays, tmp_path):
    cluster = behind_relays(Cluster(farm, tmp_path, small), relays, delay=0.005, rate=300_000).start_all()
    until(lambda: cluster.reached(0, 5))
    parts = [threading.Thread(target=relay.part, args=(1.5,)) for relay in relays[:2]]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    cluster.assert_finished()


def test_lost_frames_and_cut_connections_above_tls(farm, tmp_path):
    study = config("gradient_tracking", iterations=20, clients=4, checkpoint={"every_iterations": 7})
    cluster = Cluster(farm, tmp_path, study, patience=0.3)
    for i in range(4):
        cluster.start(i, lossy={"drop": 0.1, "cut": 0.01, "seed": 1000 * i})
    cluster.assert_finished()
    reasons = [event["reason"] for i in range(4) for event in cluster.events(i, "disconnected")]
    assert any("frames are missing" in reason for reason in reasons)


# --- disks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "node1"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Leave no byte free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_full_disk_is_named_and_survived(farm, small, small_disk, tmp_path):
    cluster = Cluster(farm, tmp_path, small).start_all(pause=0.01)
    until(lambda: cluster.reached(1, 10))
    ballast = fill(small_disk)
    until(lambda: "could not be written (No space left on device)" in cluster.stderr(1))
    time.sleep(1)
    assert farm.code(cluster.numbers[1]) is None
    ballast.unlink()
    cluster.assert_finished()
    assert "node 1: checkpoints are written again" in cluster.stderr(1)
    assert not cluster.events(2, "unsaved")


def damaged(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[len(content) // 2 :]
    else:
        content[{"digest": 10, "first line": 80, "body": -20}[how]] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "digest", "first line", "body"])
def test_damage_anywhere_in_a_checkpoint_is_found(how, tmp_path):
    files = CheckpointFiles(tmp_path, {"node": 1}, keep=2)
    for k in (3, 5):
        files.save(Checkpoint(k, {"x": np.arange(100.0) + k, "k": np.array(k)}, {2: {(k, 0): bytes(50)}}, {2: 1}))
    newest = tmp_path / "checkpoint-00000002.bin"
    damaged(newest, how)
    found = CheckpointFiles(tmp_path, {"node": 1}, keep=2).load()
    assert found.checkpoint.k == 3 and found.saved == [3] and found.checkpoint.value["k"].shape == ()
    assert found.notes[0].startswith(f"{newest} is damaged (") and len(found.notes) == 2
    with pytest.raises(DataError, match="of another run: node is 1 there and 2 here"):
        CheckpointFiles(tmp_path, {"node": 2}, keep=2).load()


@pytest.mark.parametrize("how", ["cut", "body"])
def test_of_a_damaged_checkpoint_the_one_before_is_taken(how, farm, small, tmp_path):
    cluster = Cluster(farm, tmp_path, small).start_all(pause=0.01)
    until(lambda: cluster.reached(1, 30))
    cluster.kill(1)
    *_, previous, newest = checkpoints(cluster, 1)
    damaged(newest, how)
    cluster.start(1)
    cluster.assert_finished()
    (resumed,) = cluster.events(1, "resumed")
    said = cluster.stderr(1)
    assert f"node 1: {newest} is damaged" in said
    assert f"node 1: the checkpoint of iteration {resumed['k']} is taken" in said
    assert resumed["k"] % 7 == 0 and newest.with_suffix(".damaged").exists() and previous != newest


def checkpoints(cluster, i):
    return sorted((cluster.out(i) / "checkpoints").rglob("checkpoint-*.bin"))


def test_a_node_without_an_intact_checkpoint_ends_and_says_why(farm, small, tmp_path):
    cluster = Cluster(farm, tmp_path, small).start_all(pause=0.01)
    until(lambda: cluster.reached(1, 30))
    cluster.kill(1)
    before = cluster.stderr(1)
    found = checkpoints(cluster, 1)
    contents = [path.read_bytes() for path in found]
    for path in found:
        damaged(path, "body")
    cluster.start(1)
    assert farm.wait(cluster.numbers[1]) == 2
    said = cluster.stderr(1).removeprefix(before).splitlines()
    assert len(said) == 1 and said[0].startswith("error: ") and said[0].endswith("the run cannot be resumed")
    for path in found:
        path.unlink()
    cluster.start(1)
    assert farm.wait(cluster.numbers[1]) == 2
    assert "refuses this node (it confirmed iteration" in cluster.stderr(1).splitlines()[-1]
    assert any("it has lost its checkpoints" in one["text"] for i in (0, 2) for one in cluster.events(i, "refused"))
    for path, content in zip(found, contents, strict=True):
        path.write_bytes(content)
    cluster.start(1)  # nothing was changed by either
    cluster.assert_finished()
