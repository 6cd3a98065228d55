"""``python -m scripts.goldens write|check [names…]``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from scripts.goldens.comparing import differences, machine
from scripts.goldens.running import enter, timed
from scripts.goldens.studies import SLICE, STUDIES

FOLDER = Path(__file__).parents[2] / "tests" / "goldens"
MACHINE = "machine.json"


def run(names: list[str], jobs: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Run studies in a few processes; each as it is over, the long ones begun first."""
    enter()
    names = sorted(names, key=lambda name: -STUDIES[name].seconds)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=enter) as pool:
        for done in as_completed([pool.submit(timed, name) for name in names]):
            yield done.result()


def write(names: list[str], jobs: int) -> int:
    """Write what studies give now."""
    FOLDER.mkdir(exist_ok=True)
    if set(names) == set(STUDIES):
        for file in FOLDER.glob("*.json"):
            file.unlink()
    for name, found, seconds in run(names, jobs):
        codes = " ".join(str(step["code"]) for step in found["steps"])
        print(f"{name}: {seconds:.1f} s, exit codes {codes}", flush=True)
        (FOLDER / f"{name}.json").write_text(_dumped(found))
    (FOLDER / MACHINE).write_text(_dumped(machine()))
    return 0


def check(names: list[str], jobs: int) -> int:
    """Compare what studies give now with what was written; 1 where anything differs."""
    before, now = json.loads((FOLDER / MACHINE).read_text()), machine()
    exact = before == now
    if not exact:
        other = ", ".join(f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key])
        print(f"floating-point numbers are compared to 1e-6 alone, integers exactly: another machine ({other})")
    count, differing = 0, 0
    for name, found, _ in run(names, jobs):
        file = FOLDER / f"{name}.json"
        if not file.is_file():
            print(f"{name}: there is no golden; write one")
            differing += 1
            continue
        again = json.loads(json.dumps(found))
        lines = list(differences(json.loads(file.read_text()), again, exact=exact, where=(name,)))
        for line in lines:
            print(line)
        count, differing = count + 1, differing + bool(lines)
    print(f"{count} studies compared, {differing} differ")
    return int(differing > 0)


def _dumped(found: Any) -> str:
    """JSON, a line for each file, step and column; floats in the shortest form that gives them back exactly."""
    if not {"steps", "files"} <= found.keys():
        return json.dumps(found, indent=1) + "\n"
    steps = ",\n ".join(json.dumps(step, ensure_ascii=False) for step in found["steps"])
    files = ",\n ".join(f"{json.dumps(k)}: {_file(v)}" for k, v in found["files"].items())
    return f'{{"steps": [\n {steps}],\n"files": {{\n {files}}}}}\n'


def _file(found: Any) -> str:
    if isinstance(found, dict) and "columns" in found:
        columns = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found["columns"].items())
        return f'{{"rows": {found["rows"]}, "columns": {{\n  {columns}}}}}'
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.goldens", description=__doc__)
    parser.add_argument("what", choices=("write", "check", "list"))
    parser.add_argument("names", nargs="*", help="studies; none: all; slice: those of the tests")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    names = [one for name in given.names or STUDIES for one in (SLICE if name == "slice" else (name,))]
    unknown = [name for name in names if name not in STUDIES]
    if unknown:
        parser.error(f"no such study: {', '.join(unknown)}")
    if given.what == "list":
        print("\n".join(names))
        return 0
    return (write if given.what == "write" else check)(names, given.jobs)


if __name__ == "__main__":
    sys.exit(main())
