"""``dspodfl node``: starts that cannot be, in one line; connections that are refused; SIGTERM; data of its own."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
from tests.nodes.ends import Recorder
from tests.nodes.ends import until as until_async
from tests.nodes.harness import World, config
from tests.nodes.processes import Cluster, until

from dspodfl import Config, Result
from dspodfl.config import Peer
from dspodfl.config.nodes import Tls
from dspodfl.nodes import Identity, RefusedError, StoredModels, TlsTransport, approve, new_ca, new_keys, request
from dspodfl.nodes import keys as key_files
from dspodfl.protocol import Bye, Hello, State


@pytest.fixture
def small():
    return config("dspodfl", iterations=40, clients=3, graph={"kind": "path"}, checkpoint={"every_iterations": 7})


@pytest.fixture
def cluster(farm, small, tmp_path, keys):
    return Cluster(farm, tmp_path, small, keys=keys)


def refused(cluster, i=1, *words, code=2, **what):
    """Start a node that cannot start; return the one line that it says."""
    cluster.start(i, *words, **what)
    found = cluster.farm.wait(cluster.numbers[i])
    lines = cluster.stderr(i).splitlines()
    assert found == code and len(lines) == 1 and lines[0].startswith("error: "), (found, lines)
    return lines[0]


# --- starts ---------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken(cluster):
    with socket.create_server(("127.0.0.1", cluster.ports[1])):
        line = refused(cluster, code=4)
    assert line.startswith(f"error: nodes.listen = '{cluster.addresses[1]}': must be an address that is free here (")


def tls(cluster, **files):
    given = {"certificate": str(cluster.keys / "1.crt"), "key": str(cluster.keys / "1.key")}
    return Tls(**{**given, **{name: str(path) for name, path in files.items()}})


def test_keys_that_cannot_be_used(cluster, tmp_path):
    key = tmp_path / "open.key"
    shutil.copy(cluster.keys / "1.key", key)
    key.chmod(0o644)
    cluster.write(1, tls=tls(cluster, key=key))
    assert f"nodes.tls.key = '{key}': must be readable by its owner alone (chmod 600" in refused(cluster)
    (tmp_path / "1.err").unlink()
    cluster.write(1, tls=tls(cluster, key=tmp_path / "none.key"))
    assert "must be a file that can be read (No such file or directory)" in refused(cluster)
    (tmp_path / "1.err").unlink()
    key.write_text("not a key")
    key.chmod(0o600)
    cluster.write(1, tls=tls(cluster, key=key))
    assert "must be a private key in PEM" in refused(cluster)
    (tmp_path / "1.err").unlink()
    cluster.write(1, tls=tls(cluster, key=cluster.keys / "2.key"))
    assert f"must be the key of {cluster.keys / '1.crt'}" in refused(cluster)


def test_data_that_are_not_there(cluster, tmp_path):
    assert refused(cluster, data=tmp_path / "none") == f"error: {tmp_path / 'none'}: no such folder"
    (tmp_path / "1.err").unlink()
    (tmp_path / "empty").mkdir()
    assert "empty/train.npz" in refused(cluster, data=tmp_path / "empty")


def test_a_graph_without_this_node(cluster):
    cluster.write(1)
    cluster.starts[7] = 0
    line = refused(cluster, 7, config=cluster.folder / "1.toml")
    assert line == "error: --id = 7: must be a node of the graph, from 0 to 2"


def test_a_neighbour_without_an_entry(cluster):
    entries = [Peer(id=j, address=cluster.addresses[j], certificate=str(cluster.keys / f"{j}.crt")) for j in (1, 2)]
    cluster.write(1, peers=entries)
    assert "node 0 is a neighbour of node 1 and has none" in refused(cluster)


def test_the_folder_of_another_run_or_node(cluster):
    cluster.start(1)
    until(lambda: cluster.events(1, "listening"))
    cluster.kill(1)
    err = cluster.folder / "1.err"
    out = ("--out", cluster.out(1))
    for changes, words in (
        ({"run_id": "other"}, "of the run 'other'; it is of the run 'test'"),
        ({"changes": {"seed": 5}}, "seed differs"),
    ):
        err.unlink(missing_ok=True)
        cluster.write(1, **changes)
        assert words in refused(cluster)
    err = cluster.folder / "2.err"
    cluster.write(2)
    assert "that of node 2; it is that of node 1" in refused(cluster, 2, *out)
    (cluster.folder / "mine").mkdir()
    (cluster.folder / "mine" / "thesis.txt").touch()
    err.unlink()
    assert "an empty folder, or that of the same node and run" in refused(cluster, 2, "--out", cluster.folder / "mine")
    assert os.listdir(cluster.folder / "mine") == ["thesis.txt"]


@pytest.mark.parametrize(("name", "why"), [("bridge", "bridge"), ("fedavg", "fedavg"), ("scaffold", "scaffold")])
def test_algorithms_that_do_not_run_on_nodes(name, why, farm, keys, tmp_path):
    study = config(name, iterations=4, clients=4, graph={"kind": "complete"})
    line = refused(Cluster(farm, tmp_path, study, keys=keys))
    assert line.startswith(f"error: algorithms = '{name}': must be one that runs on nodes; ") and why in line


def test_too_little_to_retain(cluster):
    cluster.write(1, retain="1 kB")
    assert "nodes.retain" in refused(cluster)


def test_one_of_several_runs_is_chosen(farm, keys, tmp_path):
    study = config(["dgd", "dspodfl"], iterations=6, clients=3, seeds=2)
    cluster = Cluster(farm, tmp_path, study, keys=keys)
    assert refused(cluster) == "error: --algorithm = None: must be given, since the study has several: dgd, dspodfl"
    (tmp_path / "1.err").unlink()
    line = refused(cluster, 1, "--algorithm", "dgd")
    assert line == "error: --seed = None: must be given, since the study has several: 0, 1"
    (tmp_path / "1.err").unlink()
    assert "--algorithm = 'dsgd': must be one of dgd, dspodfl" in refused(cluster, 1, "--algorithm", "dsgd")
    for i in range(3):
        cluster.start(i, "--algorithm", "dspodfl", "--seed", 1)
    assert set(cluster.ends().values()) == {0}
    cluster.assert_equal(number=next(n for n, run in enumerate(World(study, tmp_path).study.runs)
                                     if (run.algorithm, run.seed) == ("dspodfl", 1)))  # fmt: skip
    assert [path.name for path in (cluster.out(0) / "models").iterdir()] == ["dspodfl-seed1.rows"]


def test_a_folder_in_use(cluster):
    cluster.start(1)
    until(lambda: cluster.events(1, "listening"))
    first = cluster.numbers[1]
    before = cluster.stderr(1)
    cluster.start(1)
    assert cluster.farm.wait(cluster.numbers[1]) == 2
    lines = cluster.stderr(1).removeprefix(before).splitlines()
    assert any("must be a folder that no other process uses now" in line for line in lines)
    assert cluster.farm.code(first) is None


# --- clocks ---------------------------------------------------------------------------------------------------


def keys_of(folder, monkeypatch, days):
    """Keys of nodes 0 to 2 that were made some days from now, and are valid for three days."""

    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=days)

    with monkeypatch.context() as patch:
        patch.setattr(key_files, "datetime", Clock)
        new_keys(folder, range(3), days=3)
    return folder


@pytest.mark.parametrize(("days", "words"), [(-20, "expired on"), (20, "is not valid before")])
def test_a_certificate_or_a_clock_that_is_wrong(days, words, farm, small, keys, tmp_path, monkeypatch):
    wrong = keys_of(tmp_path / "wrong", monkeypatch, days)
    cluster = Cluster(farm, tmp_path, small, keys=keys)
    cluster.write(1, tls=Tls(certificate=str(wrong / "1.crt"), key=str(wrong / "1.key")))
    line = refused(cluster)
    assert "nodes.tls.certificate" in line and words in line
    assert f"by this machine's clock ({datetime.now(UTC):%Y-%m-%d}" in line and "clock" in line.rpartition(":")[2]
    # a neighbour's
    mixed = [Peer(id=j, address=cluster.addresses[j], certificate=str(keys / f"{j}.crt")) for j in (0, 1)]
    mixed.append(Peer(id=2, address=cluster.addresses[2], certificate=str(wrong / "2.crt")))
    cluster.write(1, peers=mixed)
    cluster.start(1)
    until(lambda: f"node 1: the certificate of node 2 {words}" in cluster.stderr(1))
    monkeypatch.setattr("dspodfl.nodes.identity.clock_problem", lambda *_: None)  # that of the other end
    intruder(cluster, wrong)
    said = {-20: "its certificate has expired by this machine's clock", 20: "its certificate is not valid yet"}[days]
    until(lambda: any(said in event["reason"] for event in cluster.events(1, "refused")))


# --- connections ----------------------------------------------------------------------------------------------


def intruder(cluster, keys, change=None, certificate="2", ca=None):
    """Dial node 1 as node 2 would, with another certificate or HELLO; return what came back."""
    given = {**cluster.config.model_dump(exclude_unset=True), "nodes": {"run_id": "test"}}
    world = World(Config(**given), cluster.folder)
    job = world.job(2)
    plan = job.plan()
    hello = Hello(1, 2, plan.run_id, os.urandom(16), plan.config, plan.schema, plan.first(1, 0), 0)
    hello = msgspec.structs.replace(hello, **(change(hello) if change else {}))
    peers = {1: [] if ca else [cluster.keys / "1.crt"]}
    who = Identity(
        int(certificate), keys / f"{certificate}.crt", keys / f"{certificate}.key", peers, ca=ca, run_id="test"
    )

    class Intruder(Recorder):
        def opened(self, connection):
            self.connections.append(connection)
            connection.send(hello)

    async def dial():
        handler = Intruder()
        addresses = {1: cluster.addresses[1]}
        transport = TlsTransport(who, frozenset({1}), job.schema, handler, listen_at="127.0.0.1:0", addresses=addresses)
        try:
            with contextlib.suppress(RefusedError):
                await transport.dial(1)
                await until_async(lambda: handler.reasons)
        finally:
            await transport.close()
        return handler

    handler = asyncio.run(dial())
    assert not [message for _, message, _ in handler.messages if isinstance(message, State)]
    return handler


def digest_changed(hello):
    at = [key for key, _ in hello.config].index("train.batch_size")
    return {"config": (*hello.config[:at], ("train.batch_size", bytes(8)), *hello.config[at + 1 :])}


WRONG = {
    "another run": (lambda hello: {"run_id": "other/dspodfl/0"}, "the run is 'other/dspodfl/0' there and 'test/"),
    "another configuration": (digest_changed, "the configuration differs: train.batch_size"),
    "a key that is not here": (
        lambda hello: {"config": (*hello.config, ("zeal", bytes(8)))},
        "the configuration differs: zeal is set there alone",
    ),
    "another schema": (lambda hello: {"schema": bytes(32)}, "what is exchanged differs in names, shapes or types"),
    "another version": (lambda hello: {"version": 2}, "the protocol's version is 2 there and 1 here"),
}


def test_what_is_refused_changes_nothing(cluster, keys, tmp_path):
    """Node 2 is missing at first; others come in its place. Then it comes itself."""
    cluster.start(0)
    cluster.start(1)
    until(lambda: cluster.events(1, "connected"))
    texts = lambda: [event.get("text", "") for event in cluster.events(1)]  # noqa: E731
    for name, (change, reason) in WRONG.items():
        handler = intruder(cluster, keys, change)
        (bye,) = [message for message in handler.after_hello if isinstance(message, Bye)]
        assert bye.reason == "refused" and reason in bye.text, name
        until(lambda: any(f"node 2 is refused: {reason}" in text for text in texts()))  # noqa: B023
    handler = intruder(cluster, keys, lambda hello: {"id": 0})
    assert not handler.after_hello
    until(lambda: any("it claims to be node 0, with the certificate of node 2" in str(e) for e in cluster.events(1)))
    strangers = tmp_path / "strangers"
    new_keys(strangers, [2])
    handler = intruder(cluster, strangers)
    assert not handler.messages
    until(lambda: any("its certificate is not one of those that are trusted here" in text for text in texts()))
    with socket.create_connection(("127.0.0.1", cluster.ports[1])) as plaintext:
        plaintext.sendall(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: any("it does not speak TLS 1.3" in text for text in texts()))
    assert all(text in cluster.stderr(1) for text in texts() if text.startswith(("refused", "node 2 is refused")))
    cluster.start(2)
    cluster.assert_finished()


def test_a_node_that_is_not_a_neighbour(farm, tmp_path):
    """With a CA the certificate is good, and yet it is refused: on a path node 3 is no neighbour of node 1."""
    study = config("dspodfl", iterations=20, clients=4, graph={"kind": "path"})
    keys = tmp_path / "ca"
    authority = new_ca(keys)
    for i in range(4):
        approve([request(keys, i, "test").path], authority.path)
    cluster = Cluster(farm, tmp_path, study, keys=keys)
    for i in range(4):
        peers = [Peer(id=j, address=cluster.addresses[j]) for j in range(4)]
        files = Tls(certificate=str(keys / f"{i}.crt"), key=str(keys / f"{i}.key"), ca=str(authority.path))
        cluster.write(i, tls=files, peers=peers)
    for i in (0, 1, 2):
        cluster.start(i)
    until(lambda: cluster.events(1, "connected"))
    handler = intruder(cluster, keys, lambda hello: {"id": 3}, certificate="3", ca=authority.path)
    assert not handler.messages
    until(lambda: any("node 3 is not a neighbour of node 1" in e["reason"] for e in cluster.events(1, "refused")))
    cluster.start(3)
    cluster.assert_finished()


# --- signals and data -----------------------------------------------------------------------------------------


def test_sigterm_drains_and_the_same_command_resumes(cluster):
    cluster.start_all(pause=0.02)
    until(lambda: cluster.reached(1, 5))
    cluster.signal(1, signal.SIGTERM)
    assert cluster.farm.wait(cluster.numbers[1]) == 143
    assert cluster.events(1, "ended")[-1]["reason"] == "draining"
    at = cluster.events(1, "ended")[-1]["k"]
    until(lambda: any("left: draining" in event["text"] for event in cluster.events(0, "note")))
    cluster.start(1)
    cluster.assert_finished()
    assert cluster.events(1, "resumed")[-1]["k"] == at


def test_divergence_ends_all_nodes(farm, keys, tmp_path):
    rate = {"learning_rate": {"kind": "constant", "value": 1e30}}
    data = {"name": "ridge", "samples": 60, "test_samples": 20}
    tables = config("dgd", iterations=12, clients=4, train=rate).model_dump(exclude_unset=True)
    study = Config(**{**tables, "data": data, "model": {"name": "linear"}})
    cluster = Cluster(farm, tmp_path, study, keys=keys).start_all()
    assert set(cluster.ends().values()) == {3}
    assert all("diverged at iteration" in cluster.stderr(i) for i in range(4))


def test_nodes_with_data_of_their_own(farm, keys, tmp_path):
    """The accuracy is the mean over the nodes' own test sets."""
    study = config("dspodfl", iterations=30, clients=3, eval={"every": 10})
    generator = np.random.default_rng(0)
    cluster = Cluster(farm, tmp_path, study, keys=keys)
    for i in range(3):
        folder = tmp_path / f"data{i}"
        folder.mkdir()
        for name, count in (("train", 40), ("test", 10 + i)):
            y = generator.integers(0, 10 - 3 * i, count)  # two of them do not hold every class
            x = generator.normal(size=(count, 8)).astype(np.float32) + y[:, None]
            np.savez(folder / f"{name}.npz", x=x, y=y, classes=10)
        cluster.start(i, data=folder)
    assert set(cluster.ends().values()) == {0}, cluster.stderr(0)
    out = tmp_path / "all"
    number = farm.start(["nodes", "collect", *(cluster.out(i) for i in range(3)), "--out", out], tmp_path / "c.err")
    assert farm.wait(number) == 0, (tmp_path / "c.err").read_text()
    metrics = Result.load(out).metrics
    stored = [next(iter((cluster.out(i) / "models").glob("*.rows"))) for i in range(3)]
    scores = [StoredModels.read(path).at(30).score[1] for path in stored]
    assert metrics["accuracy"].iloc[-1] == pytest.approx(np.mean(scores))
    assert metrics["accuracy_average_model"].isna().all() and metrics["consensus_error"].notna().all()
    found = Result.load(out)
    assert found.clients["samples"].tolist() == [40, 40, 40]
    assert "means over the nodes' own test sets" in str(found.summary["study"])
