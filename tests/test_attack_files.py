"""A slice of the attacks on files (`python -m scripts.attack` has all): kills at file operations, and flipped bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "every", "kinds"),
    [
        ("kills", 10**6, 7),  # one of each kind, in the middle
        pytest.param("kills", 401, 7, marks=pytest.mark.long),
        ("flips", 97, 6),
    ],
)
def test_what_is_promised_of_files_holds(name, every, kinds):
    alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "scripts.attack", name, "--every", str(every)]
    env = alone | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    counts = re.findall(rf"^{name}: .*: tried (\d+), held (\d+)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(counts) == kinds and all(tried == held and int(tried) > 0 for tried, held in counts)


def test_an_attack_that_succeeds_is_counted_and_ends_with_1(monkeypatch, capsys, tmp_path):
    from scripts.attack import Tally, __main__

    def attack(every):
        tally = Tally("some", "a door")
        tally.count(None)
        tally.count("it was open")
        yield tally

    page = tmp_path / "page.md"
    page.write_text("# Page\n\nText.\n")
    monkeypatch.setattr(__main__, "ATTACKS", {"some": attack})
    monkeypatch.setattr(sys, "argv", ["attack", "--write", str(page)])
    for _ in range(2):
        assert __main__.main() == 1
        assert "some: a door: tried 2, held 1\n  failed: it was open\n" in capsys.readouterr().out
        text = page.read_text()
        assert text.startswith("# Page\n\nText.\n") and text.count("| a door | 2 | 1 |") == 1
        assert text.count("All cases were tried.") == 1


def test_every_table_of_the_page_is_written_by_the_script(tmp_path):
    from scripts.attack import Tally, __main__

    page = (ROOT / "docs/reliability.md").read_text()
    for name in __main__.ATTACKS:
        assert page.count(__main__.BEGIN.format(name)) == page.count(__main__.END.format(name)) == 1
        assert __main__.ABOUT[name] in page
    assert page.count("| times | held |") == len(__main__.ATTACKS)
    (tmp_path / "page.md").write_text(page)
    __main__.write(tmp_path / "page.md", "hostile", [Tally("hostile", "a file", 3, 3)], every=7)
    text = (tmp_path / "page.md").read_text()
    assert "| **hostile, all** | **3** | **3** |" in text and "One case of 7 was tried, evenly spread." in text
