"""Nodes in network namespaces of their own: limited bandwidth, lost packets, delay, a link that is down.

Where namespaces are not allowed the tests are skipped, and say so; `test_faults` has a relay on loopback for the same
faults. All traffic stays on the machine.
"""

import os
import shutil
import subprocess
import time

import pytest
from tests.nodes.harness import config
from tests.nodes.processes import Cluster, until


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True, text=True)


class Network:
    """Three namespaces, each joined to a bridge by a veth pair: node i has the address 10.199.77.(i + 1)."""

    def __init__(self, name):
        self.name, self.bridge = name, f"{name}b"
        self.spaces = [f"{name}{i}" for i in range(3)]
        self.addresses = [f"10.199.77.{i + 1}:7733" for i in range(3)]

    def make(self):
        """Make it; the bridge has a namespace of its own, so that nothing of this machine is touched."""
        ip("-n", self.bridge, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "bridge0", "up")
        for i, space in enumerate(self.spaces):
            ip("netns", "add", space)
            ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"v{i}", "netns", self.bridge)
            ip("-n", self.bridge, "link", "set", f"v{i}", "master", "bridge0")
            ip("-n", self.bridge, "link", "set", f"v{i}", "up")
            ip("-n", space, "address", "add", f"10.199.77.{i + 1}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def inside(self, i, *words, check=True):
        """Run a command in the namespace of a node."""
        return subprocess.run(
            ["ip", "netns", "exec", self.spaces[i], *map(str, words)], check=check, capture_output=True, text=True
        )

    def remove(self):
        for space in (*self.spaces, self.bridge):
            ip("netns", "del", space, check=False)


@pytest.fixture
def network():
    """A network; what is not allowed here is said."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2: these faults are tested on loopback alone")
    made = Network(f"dspodfl{os.getpid() % 100000}n")
    try:
        found = ip("netns", "add", made.bridge, check=False)
        if found.returncode:
            pytest.skip(f"network namespaces are not allowed here ({found.stderr.strip()}): loopback alone is tested")
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture
def cluster(farm, network, keys, tmp_path):
    study = config("gradient_tracking", iterations=40, clients=3, checkpoint={"every_iterations": 7})
    made = Cluster(farm, tmp_path, study, keys=keys, patience=1.0)
    made.addresses = network.addresses
    return made


def run(cluster, network, **what):
    for i in range(3):
        cluster.start(i, namespace=network.spaces[i], **what)


def sent(network, i):
    """Bytes that a node has sent, by the kernel's count."""
    return int(network.inside(i, "cat", "/sys/class/net/eth0/statistics/tx_bytes").stdout)


def test_limited_bandwidth(cluster, network):
    for i in range(3):
        network.inside(i, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "8kb",
                       "latency", "400ms")  # fmt: skip
    began = time.monotonic()
    run(cluster, network)
    cluster.assert_finished()
    assert max(sent(network, i) for i in range(3)) / 250_000 - 0.5 < time.monotonic() - began


def test_lost_packets(cluster, network):
    if shutil.which("iptables") is None:
        pytest.skip("there is no iptables here: lost packets are not tested")
    for i in range(3):
        drop = ["-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP"]
        found = network.inside(i, "iptables", "-A", "INPUT", *drop, check=False)
        if found.returncode:
            pytest.skip(f"iptables has no statistic match here ({found.stderr.strip()[:100]})")
    run(cluster, network)
    cluster.assert_finished()
    dropped = [
        network.inside(i, "iptables", "-L", "INPUT", "-v", "-x").stdout.splitlines()[2].split()[0] for i in range(3)
    ]
    assert sum(map(int, dropped)) > 0


def test_delay(cluster, network):
    for i in range(3):
        found = network.inside(
            i, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "10ms", "3ms", check=False
        )
        if found.returncode:
            pytest.skip(f"the kernel has no netem ({found.stderr.strip()[:100]}): delay is tested by a relay alone")
    run(cluster, network)
    cluster.assert_finished()


def test_a_link_that_is_down_for_two_seconds(cluster, network):
    run(cluster, network, pause=0.02)
    until(lambda: cluster.reached(0, 8))
    ip("-n", network.bridge, "link", "set", "v1", "down")
    time.sleep(2)
    before = cluster.models(0)
    assert len(before) < 40
    ip("-n", network.bridge, "link", "set", "v1", "up")
    cluster.assert_finished()
    assert any("no progress" in event["reason"] for i in range(3) for event in cluster.events(i, "disconnected"))
