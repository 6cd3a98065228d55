"""What users read is in the field's words (docs/glossary.md): the dialect that was there does not come back."""

import re
from pathlib import Path

import pytest
import typer

from dspodfl.ui.cli.app import app

ROOT = Path(__file__).parents[1]
DIALECT = {
    "resume": r"\b(go|goes|going|gone|went) on with\b|\btak(e|es|en|ing) up again\b",
    "save a checkpoint": r"\bput(s|ting)? away\b",
    "evaluate": r"\blook(s|ed)? at\b|\bjudg(e|es|ed|ing|ement)\b|\bmodels (are|is) worth\b",
    "probability, Bernoulli draw": r"\bchances?\b|\bcoins?\b",
    "the number by name": r"\bso (many|much|often)\b(?! (that|as)\b)",
    "is called with, receives, returns": r"\bhears?( of)?\b|\b(is|are|was|were) (told|asked)\b",
    "reference implementation": r"\btwins?\b",
}
MADE = {"api.md"}  # of docstrings, whose words follow room by room
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in MADE),
    *sorted((ROOT / "src").rglob("*.md")),
]


def dialect(text):
    """Lines of a text that use a word of the dialect, each with what to write instead."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for use, pattern in DIALECT.items():
            found += [f"line {number}: {match[0]!r}: use {use}" for match in re.finditer(pattern, line, re.IGNORECASE)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_in_the_words_of_the_glossary(page):
    assert dialect(page.read_text()) == []


def commands(command=None, words=()):
    command = command or typer.main.get_command(app)
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words) or "dspodfl")
def test_help_is_in_the_words_of_the_glossary(words):
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    text = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
    assert dialect("\n".join(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "to go on with a run",
        "it puts away where it stands",
        "the models are looked at",
        "models are judged",
        "by chance",
        "a coin per link",
        "start so often",
        "a callback hears of it",
        "the rank is told",
        "the plain twin",
    ],
)
def test_dialect_is_found(text):
    assert len(dialect(text)) == 1


@pytest.mark.parametrize("text", ["so that it resumes", "so many that none fits", "the run goes on", "asked by users"])
def test_plain_english_is_not(text):
    assert dialect(text) == []


def test_the_glossary_has_some_fifty_words_in_order():
    words = re.findall(r"^\| ([a-z ]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[1:]
    assert words == sorted(set(words)) and 40 <= len(words) <= 52
