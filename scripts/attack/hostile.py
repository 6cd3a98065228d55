"""Hostile files wherever a file can be named: pipes, devices, bombs, nests, wrong encodings, damaged archives.

Each is put where a study names it, and ``dspodfl check`` (or the command that reads such files) must end in success or
in plain lines and exit code 2.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scripts.attack import STUDY, Tally, thinned
from scripts.attack.sandbox import Sandbox

Put = Callable[[Path], None]
"""Makes a hostile thing of a name."""

Case = tuple[str, str, Put, list[str]]
"""What is tried: its name, the file, how the file is made, the command line."""


def attack(every: int = 1) -> Iterator[Tally]:
    """Try one case of ``every``, in each place."""
    yield from _tried({place: thinned(some, every) for place, some in cases(seed=0).items()})


def sample(count: int, seed: int) -> Tally:
    """Try ``count`` cases of all, drawn with this seed."""
    attempts = [case for some in cases(seed).values() for case in some]
    return next(_tried({"a sample": random.Random(seed).sample(attempts, count)}))


def _tried(groups: Mapping[str, Sequence[Case]]) -> Iterator[Tally]:
    with tempfile.TemporaryDirectory() as name, Sandbox(Path(name)) as sandbox:
        folder = Path(name)
        for place, attempts in groups.items():
            tally = Tally("hostile", place)
            for what, file, put, words in attempts:
                _prepare(folder, file)
                put(folder / file)
                ending = sandbox(*words)
                tally.count(f"{what}: {ending.wrong}" if ending.wrong else None)
            yield tally


def _prepare(folder: Path, file: str) -> None:
    """Empty a folder, and write the study and what belongs next to the file that is tried."""
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    (folder / "study.toml").write_text(STUDY)
    target = folder / file
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.startswith("shards/"):
        for each in ("a", "b", "c", "test"):
            np.savez(target.parent / f"{each}.npz", x=np.ones((6, 3), np.float32), y=np.arange(6) % 4)


def cases(seed: int) -> dict[str, list[Case]]:
    """What is tried, by place; bytes of archives are flipped with this seed."""
    return {
        place: [(f"{place}: {name}", file, put, words) for name, put in {**THINGS, **own}.items()]
        for place, file, words, own in _places(seed)
    }


_SWEEP = [
    *("sweep", "own.toml", "--over", "rates.refresh=0", "--quiet"),
    *("--set", "train.iterations=2", "--set", "seeds=1", "--set", "clients.count=4", "--set", 'algorithms=["dgd"]'),
]


def _places(seed: int) -> Iterator[tuple[str, str, list[str], dict[str, Put]]]:
    def check(change: str) -> list[str]:
        return ["check", "study.toml", "--set", change]

    yield "configuration", "own.toml", ["check", "own.toml"], TOMLS
    yield "configuration of a sweep", "own.toml", _SWEEP, TOMLS
    yield "edge list", "links.csv", check('graph={kind="file",file="links.csv"}'), EDGES
    yield "GraphML", "net.graphml", check('graph={kind="file",file="net.graphml"}'), GRAPHMLS
    yield "rates of clients", "r.csv", check('rates.sgd={law="csv",file="r.csv"}'), RATES
    yield "rates of links", "r.csv", check('rates.link={law="csv",file="r.csv"}'), RATES
    yield "samples", "shards/d.npz", check('data={name="npz",path="shards"}'), ARCHIVES | _flipped(_npz(), seed)
    yield "test samples", "shards/test.npz", check('data={name="npz",path="shards"}'), ARCHIVES
    yield "folder of samples", "shards", check('data={name="npz",path="shards"}'), {}
    for suffix in ("pt", "pth", "safetensors"):
        change = f'model={{name="vgg11",weights="w.{suffix}"}}'
        words = ["check", "study.toml", "--set", 'data={name="fmnist-mini"}', "--set", change]
        yield f"weights .{suffix}", f"w.{suffix}", words, WEIGHTS


# --- things that any name may stand for ---------------------------------------------------------------------------


def _write(content: bytes) -> Put:
    return lambda path: _written(path, content)


def _written(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _text(content: str) -> Put:
    return _write(content.encode())


def _removed(make: Put) -> Put:
    def put(path: Path) -> None:
        if path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        make(path)

    return put


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


THINGS: dict[str, Put] = {
    "nothing there": _removed(lambda path: None),
    "an empty file": _removed(_write(b"")),
    "a directory": _removed(lambda path: path.mkdir()),
    "a pipe": _removed(lambda path: os.mkfifo(path)),
    "/dev/zero": _removed(lambda path: path.symlink_to("/dev/zero")),
    "/dev/stdin": _removed(lambda path: path.symlink_to("/dev/stdin")),
    "a file of /proc": _removed(lambda path: path.symlink_to("/proc/self/environ")),
    "a symbolic link to itself": _removed(lambda path: path.symlink_to(path.name)),
    "a symbolic link to nothing": _removed(lambda path: path.symlink_to("nowhere")),
    "a sparse file of a terabyte": _removed(_sparse),
    "zeros": _removed(_write(bytes(100_000))),
    "bytes 255": _removed(_write(b"\xff" * 1000)),
    "random bytes": _removed(_write(random.Random(0).randbytes(5000))),
    "UTF-16": _removed(_write("a,b\nb,c\nseed = 1\n".encode("utf-16"))),
    "Latin-1": _removed(_write("zürich,köln\n".encode("latin-1"))),
    "a byte-order mark": _removed(_write(b"\xef\xbb\xbfseed = 1\n")),
    "carriage returns": _removed(_text("seed = 1\r\n0,1\r\n")),
    "one line of a million characters": _removed(_text("a" * 1_000_000)),
    "50 MB of text": _removed(_text("seed = 1 # x\n" * 4_000_000)),
    "nested brackets": _removed(_text("a = " + "[" * 100_000)),
    "a page of the web": _removed(_text("<html><body>404 not found</body></html>")),
    "escape sequences": _removed(_text("\x1b[2J\x1b]0;x\x07,b\n\x1b[31m = 1\n")),
    "NUL bytes in text": _removed(_write(b"seed = 1\x00\n0,1\x00\n")),
}


# --- text -------------------------------------------------------------------------------------------------------

TOMLS: dict[str, Put] = {
    "nested 900 deep": _text("seed = " + "[" * 900 + "]" * 900),
    "tables nested 900 deep": _text("seed = " + "{a = " * 900 + "1" + "}" * 900),
    "a dotted key of 20,000 parts": _text(".".join(["a"] * 20_000) + " = 1"),
    "a dotted key of 500,000 parts": _text(".".join(["a"] * 500_000) + " = 1"),
    "a header of 20,000 parts": _text("[" + ".".join(["a"] * 20_000) + "]"),
    "quoted parts": _text(".".join(['"a"'] * 20_000) + " = 1"),
    "a key of 20,000 characters": _text("a" * 20_000 + " = 1"),
    "a key of escape sequences": _text(r'"\u001b[31m\u0007" = 1'),
    "an integer of a million digits": _text("seed = 1" + "0" * 1_000_000),
    "a hexadecimal integer of a million digits": _text("seed = 0x" + "f" * 1_000_000),
    "100,000 keys": _text("\n".join(f"k{n} = {n}" for n in range(100_000))),
    "100,000 tables": _text("\n".join(f"[t{n}]" for n in range(100_000))),
    "100,000 tables in one list": _text("[[graph]]\n" * 100_000),
    "an unfinished string": _text('seed = "' + "x" * 100_000),
    "an unfinished long string": _text('seed = """' + '"' * 100_001 + "x"),
    "a value twice": _text("seed = 1\nseed = 2"),
}
EDGES: dict[str, Put] = {
    "one column": _text("a\nb\nc\nd\n"),
    "three columns": _text("a,b,1\n"),
    "a self-loop": _text("a,a\n"),
    "a header alone": _text("source,target\n"),
    "comments alone": _text("# nothing\n"),
    "separators alone": _text(",,,\n;;;\n"),
    "a name of a million characters": _text("a" * 1_000_000 + ",b\nb,c\nc,d\n"),
    "a number of 10,000 digits": _text("1" * 10_000 + ",2\n2,3\n3,4\n"),
    "half a million links": _text("".join(f"{n},{n + 1}\n" for n in range(500_000))),
    "two links the other way round": _text("0,1\n1,0\n1,2\n2,3\n"),
    "names that are equal numbers": _text("1,01\n1,2\n2,3\n"),
    "escape sequences as names": _text("\x1b[31m,b\nb,c\nc,d\nd,e,f\n"),
}


def _graphml(inside: str, head: str = "", kind: str = "undirected") -> Put:
    return _text(
        f'{head}<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="{kind}">'
        f"{inside}</graph></graphml>"
    )


_NODES = "".join(f'<node id="{n}"/>' for n in "abcd")
_RING = "".join(f'<edge source="{a}" target="{b}"/>' for a, b in ("ab", "bc", "cd", "da"))
GRAPHMLS: dict[str, Put] = {
    "a ring": _graphml(_NODES + _RING),
    "nodes without ids": _graphml("<node/>" * 4),
    "one id four times": _graphml('<node id="a"/>' * 4),
    "a nested graph": _graphml(_NODES[:-2] + '><graph edgedefault="undirected"><node id="x"/></graph></node>' + _RING),
    "edges without ends": _graphml(_NODES + "<edge/>"),
    "an edge to no node": _graphml(_NODES + '<edge source="a" target="z"/>'),
    "two graphs": _text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected"><node id="a"/></graph>'
        '<graph edgedefault="undirected"><node id="b"/></graph></graphml>'
    ),
    "no graph": _text('<graphml xmlns="http://graphml.graphdrawing.org/xmlns"/>'),
    "another namespace": _text(
        '<graphml xmlns="urn:x"><graph edgedefault="undirected"><node id="a"/></graph></graphml>'
    ),
    "directed": _graphml(_NODES + _RING, kind="directed"),
    "of no kind": _graphml(_NODES + _RING, kind="sideways"),
    "parallel edges": _graphml(_NODES + _RING + _RING),
    "a self-loop": _graphml(_NODES + _RING + '<edge source="a" target="a"/>'),
    "a hyperedge": _graphml(_NODES + '<hyperedge><endpoint node="a"/></hyperedge>'),
    "ports": _graphml('<node id="a"><port name="p"/></node>'),
    "an unknown key": _graphml('<node id="a"><data key="none">1</data></node>'),
    "a key that is no number": _text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="x" for="node" attr.name="x" '
        'attr.type="double"/><graph edgedefault="undirected"><node id="a"><data key="x">here</data></node>'
        "</graph></graphml>"
    ),
    "a key of an unknown type": _text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="x" for="node" attr.name="x" '
        'attr.type="thing"/><graph edgedefault="undirected"><node id="a"><data key="x">1</data></node>'
        "</graph></graphml>"
    ),
    "30,000 elements inside one another": _graphml("<data>" * 30_000 + "</data>" * 30_000),
    "entities that multiply": _graphml(
        '<node id="&l9;"/>',
        '<!DOCTYPE x [<!ENTITY l0 "lol">'
        + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
        + "]>",
    ),
    "an entity of another file": _graphml('<node id="&x;"/>', '<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]>'),
    "an unfinished element": _text('<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph'),
    "an unknown encoding": _text('<?xml version="1.0" encoding="x-klingon"?><graphml/>'),
    "100,000 nodes": _graphml("".join(f'<node id="{n}"/>' for n in range(100_000))),
}
RATES: dict[str, Put] = {
    "columns of something else": _text("a,b\n1,2\n"),
    "rates of words": _text("client,rate\n0,fast\n1,0.5\n2,0.5\n3,0.5\n"),
    "rates of nothing": _text("client,rate\n0,\n1,0.5\n2,0.5\n3,0.5\n"),
    "rates that are not finite": _text("client,rate\n0,nan\n1,inf\n2,0.5\n3,0.5\n"),
    "rates of 1e-308": _text("client,rate\n0,1e-308\n1,0.5\n2,0.5\n3,0.5\n"),
    "a client twice": _text("client,rate\n0,0.5\n0,0.5\n1,0.5\n2,0.5\n3,0.5\n"),
    "rows of different lengths": _text("client,rate\n0,0.5,1,2,3\n1\n2,0.5\n"),
    "an unfinished quotation": _text('client,rate\n"0,0.5\n1,0.5\n'),
    "100,000 columns": _text(",".join("x" * 100_000) + "\n"),
    "a number of 10,000 digits": _text("client,rate\n0,0." + "1" * 10_000 + "\n1,0.5\n2,0.5\n3,0.5\n"),
    "rates of links": _text("source,target,rate\n0,1,0.5\n0,3,1e-308\n1,2,0.5\n2,3,0.5\n"),
}


# --- archives ---------------------------------------------------------------------------------------------------


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **(arrays or {"x": np.ones((6, 3), np.float32), "y": np.arange(6) % 4}))
    return buffer.getvalue()


def _claiming(shape: str, descr: str = "<f4", held: bytes = b"\x00" * 72, packed: bool = False) -> bytes:
    """An archive whose x claims a shape."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + held
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", npy)
        y = io.BytesIO()
        np.save(y, np.arange(6) % 4)
        archive.writestr("y.npy", y.getvalue())
    return buffer.getvalue()


_BLOCK, _BLOCKS = 2**24, 240
"""3.75 GiB in all: the most that needs no 64-bit fields."""


def _bomb(name: str, head: bytes = b"") -> Put:
    """An archive of one member: a head, then 3.75 GiB of zeros packed into four megabytes."""

    def put(path: Path) -> None:
        pack = zlib.compressobj(9, zlib.DEFLATED, -15)
        begin = pack.compress(head) + pack.flush(zlib.Z_FULL_FLUSH)
        block = pack.compress(bytes(_BLOCK)) + pack.flush(zlib.Z_FULL_FLUSH)  # on its own, so it can be repeated
        packed = begin + block * _BLOCKS + b"\x03\x00"
        sizes = struct.pack("<III", 0, len(packed), len(head) + _BLOCK * _BLOCKS)  # the checksum is that of nothing
        about = struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(name), 0)
        local = b"PK\x03\x04" + about + name.encode() + packed
        entry = b"PK\x01\x02\x14\x00" + about + bytes(14) + name.encode()
        end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
        path.write_bytes(local + entry + end)

    return put


def _bomb_of_samples(path: Path) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': (6, {_BLOCK * _BLOCKS // 6}), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    _bomb("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)(path)
    with zipfile.ZipFile(path, "a") as archive:
        y = io.BytesIO()
        np.save(y, np.arange(6) % 4)
        archive.writestr("y.npy", y.getvalue())


def _labels(value: int, dtype: str = "int64") -> Put:
    y = np.zeros(6, dtype)
    y[0] = value
    return _write(_npz(x=np.ones((6, 3), np.float32), y=y))


def _objects() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([[{"a": 1}]], dtype=object), y=np.zeros(1, int), allow_pickle=True)
    return buffer.getvalue()


ARCHIVES: dict[str, Put] = {
    "a header that claims 37 GB": _write(_claiming("(10000000000, 1)")),
    "a header that claims 2^63": _write(_claiming("(9223372036854775807, 9223372036854775807)")),
    "a header of negative sizes": _write(_claiming("(-6, -3)")),
    "a header of no samples": _write(_claiming("(0, 3)", held=b"")),
    "a header of nothing of much": _write(_claiming("(0, 9223372036854775808)", held=b"")),
    "a header that is code": _write(_claiming("__import__('os').system('touch /tmp/owned')")),
    "a header of a void of 2 GB": _write(_claiming("(6, 3)", "|V2147483647")),
    "a header of objects": _write(_claiming("(6, 3)", "|O")),
    "a header of truths": _write(_claiming("(True, 3)")),
    "a header nested 300 deep": _write(_claiming("(" * 300 + ")" * 300)),
    "3.75 GiB of zeros, packed": _bomb_of_samples,
    "text as samples": _write(_npz(x=np.full((6, 3), "a"), y=np.zeros(6, int))),
    "complex samples": _write(_npz(x=np.ones((6, 3), complex), y=np.zeros(6, int))),
    "dates as samples": _write(_npz(x=np.zeros((6, 3), "datetime64[s]"), y=np.zeros(6, int))),
    "samples beyond float32": _write(_npz(x=np.full((6, 3), 1e300), y=np.zeros(6, int))),
    "samples that are not finite": _write(_npz(x=np.full((6, 3), np.nan, np.float32), y=np.zeros(6, int))),
    "a sample without axes": _write(_npz(x=np.float32(1), y=np.int64(1))),
    "64 axes": _write(_npz(x=np.ones((6, *[1] * 60), np.float32), y=np.zeros(6, int))),
    "other names": _write(_npz(a=np.ones(3))),
    "objects": _write(_objects()),
    "a label of 10⁹": _labels(10**9),
    "a label of 2⁶³ − 1": _labels(2**63 - 1),
    "a label of 2⁶⁴ − 1": _labels(2**64 - 1, "uint64"),
    "a negative label": _labels(-1),
    "a label of −2⁶³": _labels(-(2**63)),
    "one array, no archive": _write(b"\x93NUMPY\x01\x00\x10\x00{}"),
    "half an archive": _write(_npz()[: len(_npz()) // 2]),
    "an archive with a byte too many": _write(_npz() + b"\x00"),
}


def _flipped(content: bytes, seed: int) -> dict[str, Put]:
    """Single bytes of an archive changed."""
    draw, out = random.Random(seed), {}
    for _ in range(100):
        at, bit = draw.randrange(len(content)), draw.randrange(8)
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        out[f"bit {bit} of byte {at} flipped"] = _write(bytes(changed))
    return out


class _Command:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/owned",)


WEIGHTS: dict[str, Put] = {
    "a pickle that runs a command": _write(pickle.dumps(_Command())),
    "a pickle of a memo of 2³² places": _write(b"\x80\x02K\x01r\xff\xff\xff\xff."),
    "an archive of 3.75 GiB of zeros": _bomb("w/data.pkl"),
    "a header of 2⁶³ bytes": _write(struct.pack("<Q", 2**63 - 1) + b"{}"),
    "a header nested 100,000 deep": _write(struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000),
    "tensors beyond the file": _write(
        struct.pack("<Q", 72) + b'{"a":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,4]}}' + b"1234"
    ),
    "a gzip file": _write(gzip.compress(bytes(10_000))),
    "an archive of arrays": _write(_npz()),
}
