"""The command line for people who use it for the first time: helps, lists, templates and schemas."""

import json
import re
import subprocess
import sys
import tomllib

import jsonschema
import pytest
import typer.main
from tests.edge import TINY_TOML, CommandLine

from dspodfl import Config
from dspodfl.algorithms import ALGORITHMS
from dspodfl.config import load, template
from dspodfl.config.json_schema import json_schema
from dspodfl.study.result import Result
from dspodfl.ui.cli import app as cli


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return CommandLine(monkeypatch, capsys, tmp_path)


def commands(group=None, words=()):
    """Every command and group of commands, as words."""
    group = group or typer.main.get_command(cli.app)
    yield list(words)
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words) or "dspodfl")
def test_a_help_is_whole_at_80_columns_and_answers_to_h(words, dspodfl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, long = dspodfl(*words, "-h"), dspodfl(*words, "--help")
    assert short.code == 0 and short.out == long.out and "-h, --help" in short.out
    text = re.sub(r"^Usage:.*$", "", short.out, flags=re.MULTILINE)
    assert "..." not in text and "…" not in text
    assert max(map(len, short.out.splitlines())) <= 80


def test_the_help_has_the_first_sentence_of_every_command(dspodfl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(dspodfl("-h").out.split())
    for command in cli.app.registered_commands:
        assert " ".join(command.callback.__doc__.partition("\n\n")[0].split()) in text


@pytest.mark.parametrize("words", [w for w in commands() if w], ids=" ".join)
def test_whatever_writes_to_a_place_takes_it_as_o(words, dspodfl):
    text = dspodfl(*words, "-h").out
    assert ("--out" in text) == ("-o, --out" in text)


def test_a_run_is_written_where_o_says(dspodfl, monkeypatch):
    monkeypatch.setattr(Result, "draw", lambda *_: set())
    assert dspodfl("run", "study.toml", "-o", "there", "--quiet").code == 0
    assert (dspodfl.folder / "there" / "summary.json").is_file()


# --- list -----------------------------------------------------------------------------------------------------

LISTS = {
    "algorithms": "dspodfl",
    "attacks": "sign_flip",
    "graphs": "small_world",
    "dynamics": "markov",
    "weights": "lazy_metropolis",
    "laws": "truncnorm",
    "availability": "stragglers",
    "channels": "gilbert_elliott",
    "datasets": "fmnist-mini",
    "partitions": "dirichlet",
    "models": "vgg11",
    "learning-rates": "diminishing",
}


@pytest.mark.parametrize(("what", "name"), LISTS.items())
def test_one_list_is_that_part_of_the_whole_list(what, name, dspodfl):
    whole, part = dspodfl("list").out, dspodfl("list", what)
    assert part.code == 0 and part.out in whole and len(part.out) < len(whole)
    assert re.search(rf"^  {name} ", part.out, re.MULTILINE)
    assert dspodfl("list", what.upper()).out == part.out


def test_the_lists_together_are_the_whole_list(dspodfl):
    assert "".join(dspodfl("list", what).out for what in LISTS) == dspodfl("list").out


def test_the_list_of_algorithms_says_where_they_end_what_they_send_and_where_they_were_published(dspodfl):
    lines = {line.split()[0]: line for line in dspodfl("list", "algorithms").out.splitlines() if line.startswith("  ")}
    assert list(lines) == list(ALGORITHMS)
    for name, entry in ALGORITHMS.items():
        facts = re.split(r"  +", lines[name].strip())
        assert facts[:5] == [name, *entry.facts] and entry.line in lines[name] and entry.reference in lines[name]
    tracking, dgd = lines["gradient_tracking"], lines["dgd"]
    assert "exact" in tracking and "sends 2 models" in tracking and "neighbourhood" in dgd and "not sporadic" in dgd


def test_the_list_of_algorithms_needs_no_torch():
    code = "import sys\nfrom dspodfl.algorithms import ALGORITHMS\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_of_list_names_every_list(dspodfl):
    text = " ".join(dspodfl("list", "-h").out.split())
    assert all(what in text for what in LISTS)


def test_a_list_that_there_is_not_is_refused_with_the_names_of_those_there_are(dspodfl):
    answer = dspodfl("list", "graph")
    assert answer.code == 2 and answer.out == "" and len(answer.err.splitlines()) == 1
    assert "'graph'" in answer.err and all(what in answer.err for what in LISTS)
    assert "did you mean 'graphs'" in answer.err


# --- init and schema ------------------------------------------------------------------------------------------


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_init_writes_the_schema_that_the_first_line_names(dspodfl):
    assert dspodfl("init", "own.toml").code == 0
    first = (dspodfl.folder / "own.toml").read_text().splitlines()[0]
    named = dspodfl.folder / first.removeprefix("#:schema ")
    assert named.is_file() and json.loads(named.read_text()) == json_schema()
    jsonschema.Draft202012Validator(json.loads(named.read_text())).validate(
        tomllib.loads((dspodfl.folder / "own.toml").read_text())
    )
    assert files(dspodfl.folder) == ["dspodfl.schema.json", "own.toml", "study.toml"]


def test_init_replaces_a_file_only_where_it_may(dspodfl):
    refused = dspodfl("init", "study.toml")
    assert refused.code == 2 and "--overwrite" in refused.err
    assert (dspodfl.folder / "study.toml").read_text() == TINY_TOML and files(dspodfl.folder) == ["study.toml"]
    assert dspodfl("init", "study.toml", "--overwrite").code == 0
    assert (dspodfl.folder / "study.toml").read_text() == template()
    assert load(dspodfl.folder / "study.toml") == Config()


def test_init_renews_a_schema_of_its_own_and_leaves_a_file_of_another(dspodfl):
    path = dspodfl.folder / "dspodfl.schema.json"
    path.write_text(json.dumps(json_schema() | {"properties": {}}))
    assert dspodfl("init", "a.toml").code == 0
    assert json.loads(path.read_text()) == json_schema()
    path.write_text('{"mine": 1}')
    answer = dspodfl("init", "b.toml")
    assert answer.code == 2 and "dspodfl.schema.json" in answer.err
    assert path.read_text() == '{"mine": 1}' and not (dspodfl.folder / "b.toml").exists()


def test_schema_prints_json_and_nothing_else_or_writes_a_file(dspodfl):
    printed = dspodfl("schema")
    assert printed.code == 0 and printed.err == "" and json.loads(printed.out) == json_schema()
    assert dspodfl("schema", "-o", "s.json").code == 0
    assert (dspodfl.folder / "s.json").read_text() == printed.out
    again = dspodfl("schema", "--out", "s.json")
    assert again.code == 2 and "s.json" in again.err
    assert dspodfl("schema", "--out", "s.json", "--overwrite").code == 0
    assert files(dspodfl.folder) == ["s.json", "study.toml"]
