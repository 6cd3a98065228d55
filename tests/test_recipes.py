"""The recipes of CONTRIBUTING.md work as they are written: applied to a copy of the tree, their tests pass."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACE = re.compile(
    r"# (?P<file>[\w/.-]+): (?:(?P<end>at the end)|(?P<new>a new file)|before the line \"(?P<line>.+)\")"
)


@dataclass
class Block:
    """A block of code, and where it goes."""

    file: str
    code: str
    before: str | None = None

    def apply(self, root: Path) -> None:
        path = root / self.file
        if self.before is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            old = path.read_text(encoding="utf-8") + "\n\n" if path.exists() else ""
            path.write_text(old + self.code, encoding="utf-8")
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        at = [n for n, line in enumerate(lines) if line.strip().startswith(self.before)]
        assert len(at) == 1, f"{self.file} has {len(at)} lines that begin with {self.before!r}"
        lines.insert(at[0], self.code)
        path.write_text("".join(lines), encoding="utf-8")


def recipes() -> dict[str, list[Block]]:
    found = {}
    for title, body in re.findall(r"^### \d+\. (.+?)\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL):
        found[title] = []
        for code in re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL):
            head, _, rest = code.partition("\n")
            place = PLACE.fullmatch(head)
            assert place, f"{title}: {head!r} does not say where the block goes"
            found[title].append(Block(place["file"], rest, place["line"]))
    return found


RECIPES = recipes()


def test_there_are_twelve_recipes_each_of_one_source_file_and_one_test():
    assert len(RECIPES) == 12
    for title, blocks in RECIPES.items():
        sources = {block.file for block in blocks if block.file.startswith("src/")}
        tests = [block.file for block in blocks if block.file.startswith("tests/")]
        assert len(sources) == 1 and len(tests) == 1, title


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> dict[str, str]:
    """What the test of each recipe came to, in a copy of the tree with all recipes applied."""
    root = tmp_path_factory.mktemp("tree")
    left_out = shutil.ignore_patterns(".*", "*.pyc.*", "*.tmp.*")  # with what is compiled: times of files are kept
    shutil.copytree(ROOT / "src", root / "src", ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "tests").mkdir()
    for name in ("edge.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, root / "tests")
    shutil.copytree(ROOT / "tests" / "data_0_1", root / "tests" / "data_0_1")
    for blocks in RECIPES.values():
        for block in blocks:
            block.apply(root)
    tests = [block.file for blocks in RECIPES.values() for block in blocks if block.file.startswith("tests/")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-vv",
            "--durations=5",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--tb=short",
            *tests,
        ],
        cwd=root,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    listed = subprocess.run(
        [sys.executable, "-m", "dspodfl", "list"],
        cwd=root,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return {"tests": done.stdout + done.stderr, "list": listed.stdout + listed.stderr}


@pytest.mark.parametrize("title", list(RECIPES))
def test_a_recipe_followed_to_the_letter_works(title, outcome):
    (file,) = [block.file for block in RECIPES[title] if block.file.startswith("tests/")]
    results = re.findall(rf"^{re.escape(file)}::(\w+) (\w+)", outcome["tests"], re.MULTILINE)
    assert results and all(word == "PASSED" for _, word in results), outcome["tests"][-6000:]


@pytest.mark.parametrize("name", ["wheel", "power", "stripes", "quarter", "outage"])
def test_what_a_recipe_adds_is_listed(name, outcome):
    assert re.search(rf"^  {name} ", outcome["list"], re.MULTILINE), outcome["list"]
