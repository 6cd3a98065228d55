"""Write requirements.lock: the versions of constraints.txt with the SHA-256 of their wheels.

    python -m scripts.lock                       # ask the package index that pip uses
    python -m scripts.lock --also FILE.whl       # accept this build too, one that the index does not have
    python -m scripts.lock --check               # is the lock that of constraints.txt? (no network)

The lock has the wheels for CPython 3.11 to 3.13. Digests that were accepted by --also stay when it is written again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
_OURS = re.compile(r"-(cp311-cp311|cp312-cp312|cp313-cp313|cp3\d+-abi3|(py2\.)?py3-none)-")
_ALSO = "    # also: "
_HEAD = """\
# Versions and SHA-256 digests of what CI installs. Written by: python -m scripts.lock
# Of torch the CPU build is accepted as well as the index's own; the CUDA libraries that the latter needs are not here.
"""


class _Links(HTMLParser):
    """The links of a page of the index, and the names they have."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keep the address of a link."""
        if tag == "a":
            self.found += [value for key, value in attributes if key == "href" and value]


def pins(text: str) -> dict[str, str]:
    """Name -> version of a file of lines ``name==version``."""
    return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", text, re.MULTILINE))


def locked(text: str) -> dict[str, list[str]]:
    """Name -> digests of a lock."""
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    return {entry.partition("==")[0]: re.findall(r"sha256:([0-9a-f]{64})", entry) for entry in entries}


def also(text: str) -> dict[str, dict[str, str]]:
    """Name -> file -> digest of builds that were accepted besides those of the index."""
    found: dict[str, dict[str, str]] = {}
    for file, digest in re.findall(rf"^{_ALSO}(\S+) sha256:([0-9a-f]+)$", text, re.MULTILINE):
        found.setdefault(_name_of(file), {})[file] = digest
    return found


def wheels(page: str, version: str) -> dict[str, str]:
    """File -> digest of the wheels of a version on a page of the index, for the Pythons that are supported."""
    links = _Links()
    links.feed(page)
    out = {}
    for address, fragment in map(urldefrag, links.found):
        file = address.rpartition("/")[2]
        match = re.match(r"[\w.]+?-([\w.+!]+)-", file)
        if file.endswith(".whl") and match and match[1] == version and _OURS.search(file):
            out[file] = fragment.removeprefix("sha256=")
    return out


def entry(name: str, version: str, digests: list[str], extra: dict[str, str]) -> str:
    """The lines of one package."""
    notes = "".join(f"{_ALSO}{file} sha256:{digest}\n" for file, digest in sorted(extra.items()))
    every = sorted({*digests, *extra.values()})
    return notes + " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in every)]) + "\n"


def check(constraints: str, lock: str) -> list[str]:
    """What is wrong with a lock, in lines."""
    wanted, there, digests = pins(constraints), pins(lock), locked(lock)
    wrong = [f"{name}=={version} is not in the lock" for name, version in wanted.items() if there.get(name) != version]
    wrong += [f"{name} is in the lock alone" for name in there if name not in wanted]
    return wrong + [f"{name} has no digest" for name in there if not digests.get(name)]


def _name_of(file: str) -> str:
    return re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower()


def _index() -> str:
    """The address of the index that pip asks."""
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")


def _page(name: str) -> str:
    address = f"{_index()}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def main() -> int:
    """Write the lock, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--also", nargs="*", type=Path, default=[], metavar="FILE.whl")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    constraints, before = CONSTRAINTS.read_text(), LOCK.read_text() if LOCK.exists() else ""
    if options.check:
        wrong = check(constraints, before)
        print("\n".join(wrong) or f"{LOCK.name} is that of {CONSTRAINTS.name}")
        return int(bool(wrong))
    extra = also(before)
    for file in options.also:
        extra.setdefault(_name_of(file.name), {})[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    lines = [_HEAD]
    for name, version in pins(constraints).items():
        digests = list(wheels(_page(name), version).values())
        if not digests:
            print(f"error: the index has no wheel of {name}=={version}", file=sys.stderr)
            return 1
        lines.append(entry(name, version, digests, extra.get(_name_of(name), {})))
    LOCK.write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
