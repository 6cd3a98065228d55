"""Checkpoints of a node on disk."""

import numpy as np

from dspodfl.nodes.checkpoint_files import CheckpointFiles
from dspodfl.protocol import Checkpoint


def files(folder):
    return CheckpointFiles(folder, {"node": 0}, keep=2)


def test_what_several_neighbours_were_sent_is_stored_once_and_shared_again(tmp_path):
    shared, other = memoryview(np.arange(100_000, dtype=np.uint8)), memoryview(np.ones(50, np.uint8))
    kept = {1: {(3, 0): shared, (4, 0): other}, 2: {(3, 0): shared}, 7: {(3, 0): shared}}
    value = {"theta": np.arange(6.0).reshape(2, 3), "k": np.array(5)}
    files(tmp_path).save(Checkpoint(5, value, kept, {1: 3}))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 102_000
    found = files(tmp_path).load().checkpoint
    assert {peer: {at: bytes(one) for at, one in of.items()} for peer, of in found.kept.items()} == {
        peer: {at: bytes(one) for at, one in of.items()} for peer, of in kept.items()
    }
    assert found.kept[1][3, 0] is found.kept[2][3, 0] is found.kept[7][3, 0]
    assert np.array_equal(found.value["theta"], value["theta"]) and found.durable == {1: 3}
    files(tmp_path).save(Checkpoint(6, found.value, found.kept, found.durable))
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 102_000


def test_payloads_without_bytes_are_told_from_what_follows_them(tmp_path):
    kept = {1: {(0, 0): b"", (0, 1): b"ab"}, 2: {(0, 0): b"", (0, 1): b"cd"}}
    files(tmp_path).save(Checkpoint(1, {"k": np.array(1)}, kept))
    assert files(tmp_path).load().checkpoint.kept == kept
