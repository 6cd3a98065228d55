"""One self-contained page about runs, sweeps and reproductions.

Nothing is fetched when it is opened: the style, the figures and the pictures are inside, and there is no script.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from dspodfl.errors import DataError
from dspodfl.files import is_folder
from dspodfl.folder import COMPLETE, INTERRUPTED, Folder, Manifest
from dspodfl.journal import JOURNAL
from dspodfl.outcome import RESULT, Outcome, is_outcome
from dspodfl.plots import picture
from dspodfl.report.markup import Html, el, figure, inline, join, prose
from dspodfl.report.tables import summary_table, table, tables, value_text
from dspodfl.results import Result, read_summary

_SUMMARY, _GRID = "summary.json", "grid.json"
_WORDS = {
    "holds": ("holds", "✓"),
    "holds in part": ("part", "◐"),
    "does not hold": ("not", "✗"),
    "cannot be told": ("untold", "?"),
}
"""The class and the sign of a verdict."""
_UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, ElementTree.ParseError)


@dataclass(frozen=True)
class _Entry:
    """A section of the page, and what the contents say of it."""

    slug: str
    name: str
    title: str
    what: str
    scale: str
    """How many seeds on which data: a quick try must not be taken for the whole."""
    order: tuple[Any, ...]
    """Those of the paper by their place in it, then the others as they were given."""
    word: str | None
    """The verdict; none where nothing is claimed."""
    body: Html


def page(folders: list[Path]) -> str:
    """The page about what the folders hold."""
    found, unfinished = _collect(folders)
    slugs: Counter[str] = Counter()
    entries = []
    for number, folder in enumerate(found, 1):
        try:
            make = _outcome if is_outcome(folder) else _run
            entries.append(make(folder, number, slugs))
        except _UNREADABLE as error:
            raise DataError(f"{folder}: a file in it is missing or damaged ({error})") from error
    entries.sort(key=lambda entry: entry.order)
    claims, others = [e for e in entries if e.word], [e for e in entries if not e.word]
    main = el("main", *map(_section, entries))
    body = el("body", _header(claims, others), _contents(claims, others, unfinished), main)
    return "<!DOCTYPE html>\n" + el("html", _head(), body, lang="en")


def _collect(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The folders of runs, sweeps and reproductions, each once; and the names of those that are not finished."""
    found: dict[Path, Path] = {}
    unfinished: list[str] = []
    for folder in folders:
        if not is_folder(folder):
            raise DataError(f"{folder}: not a folder; must be that of a run, a sweep or a reproduction, or hold such")
        inside, begun = [folder], _begun(folder)
        if not _holds(folder) and not begun:
            try:
                inside = sorted(path for path in folder.iterdir() if path.is_dir())
            except OSError as error:
                raise DataError(f"{folder}: cannot be read ({error.strerror})") from error
            left = [path.name for path in inside if _begun(path) and not _holds(path)]
            begun, unfinished = bool(left), unfinished + left
        there = [path for path in inside if _holds(path)]
        if not there and begun:
            how = f"dspodfl run --resume {folder}" if (folder / JOURNAL).is_file() else "the command that began it"
            raise DataError(f"{folder}: not finished; {how} goes on with it")
        if not there:
            raise DataError(
                f"{folder}: must be the folder of a run ({_SUMMARY} in it), of a sweep or a reproduction ({RESULT} in "
                "it), or one whose sub-folders are such"
            )
        found |= {path.resolve(): path for path in there if path.resolve() not in found}
    return list(found.values()), list(dict.fromkeys(unfinished))


def _begun(folder: Path) -> bool:
    manifest = _manifest(folder)
    begun = manifest is not None and manifest.kind in ("run", "experiment") and manifest.state != COMPLETE
    return begun or (folder / _GRID).is_file() or (folder / JOURNAL).is_file()


def _holds(folder: Path) -> bool:
    """Whether there is a result in a folder, whole or damaged."""
    manifest = _manifest(folder)
    if manifest is not None and manifest.kind in ("run", "experiment"):
        over = (COMPLETE, INTERRUPTED) if manifest.kind == "run" else (COMPLETE,)
        return manifest.state in over
    run = (folder / _SUMMARY).is_file() and not (folder / JOURNAL).is_file()
    return run or ((folder / RESULT).is_file() and is_outcome(folder))


def _manifest(folder: Path) -> Manifest | None:
    try:
        return Folder(folder).manifest()
    except DataError:
        return None


def _outcome(folder: Path, number: int, slugs: Counter[str]) -> _Entry:
    """The section of a sweep or a reproduction."""
    outcome = Outcome.load(folder)
    claimed = bool(outcome.paper or outcome.says or outcome.verdicts)
    file = folder / "figure.svg"
    drawing = Folder(folder).read(file.name) if file.is_file() else picture(outcome.plot(), "svg")
    caption = _caption(outcome)
    label = f"{outcome.title}. {caption} The numbers are in the table below."
    found = (
        el("h3", "What was found"),
        el("ul", *(el("li", _word(v.word), v.sentence) for v in outcome.verdicts), class_="verdicts"),
    )
    body = join(
        el("h3", "What the paper claims") if outcome.says else "",
        el("p", prose(outcome.says), class_="claim") if outcome.says else "",
        *(found if outcome.verdicts else ()),
        el("p", el("b", "Why: "), prose(outcome.why), class_="claim") if outcome.why else "",
        figure(inline(drawing, number, label), caption, f"figure of {outcome.title}"),
        el("h3", "Numbers"),
        *tables(outcome),
        _settings(outcome.config, _varied(outcome)),
        _provenance(outcome.about),
    )
    where = outcome.paper or "a sweep"
    order = (False, _natural(outcome.paper), outcome.name) if claimed else (True,)
    word = outcome.word if claimed else None
    scale = _scale(int(outcome.metrics["seed"].nunique()), outcome.config)
    return _Entry(_slug(outcome.name, slugs), outcome.name, outcome.title, where, scale, order, word, body)


def _caption(outcome: Outcome) -> str:
    """What is to be seen in the figure."""
    if outcome.kind == "delay_table":
        told = "medians of the total and of its parts; a line goes from quartile to quartile of the total"
        return f"Raw delay until target accuracies are reached: {told}; an arrow is where runs had ended without it."
    if outcome.kind == "accuracy_table":
        return "Accuracy after numbers of iterations: mean and standard deviation over seeds."
    against = outcome.axes[0] if outcome.kind == "sweep" else "delay"
    return f"Accuracy against {against}: mean and 1-sigma band over seeds."


def _run(folder: Path, number: int, slugs: Counter[str]) -> _Entry:
    """The section of a run; its models and events may be large, and are not read."""
    contents = Folder(folder)
    summary = read_summary(contents)
    config = contents.read("config.toml").decode()
    title = Result(pd.DataFrame(), pd.DataFrame(), {}, summary, config).title
    files = [folder / "accuracy_vs_delay.svg", folder / "network.png"]
    lost = [file.name for file in files if not file.is_file()]
    if lost:
        raise DataError(f"{folder}: has no {lost[0]}; draw it with: dspodfl show {folder}")
    drawing, network = (contents.read(file.name) for file in files)
    about = summary["study"]
    caption = "Accuracy (in regression, the error) against delay: mean and 1-sigma band over seeds."
    label = f"{title}. {caption} The numbers are in the table below."
    alt = "The graph of the first seed: clients as dots, the larger the higher their SGD rate, and links between them."
    image = el("img", src=f"data:image/png;base64,{base64.b64encode(network).decode()}", alt=alt)
    body = join(
        figure(inline(drawing, number, label), caption, f"figure of {title}"),
        el("h3", "Numbers"),
        summary_table(summary["algorithms"], about),
        el("h3", "Network"),
        figure(image, "The graph of the first seed.", f"network of {title}"),
        _settings(config, ""),
        _provenance(about),
    )
    name = folder.resolve().name
    return _Entry(_slug(name, slugs), name, title, "a run", _scale(len(about["seeds"]), config), (True,), None, body)


def _scale(seeds: int, config: str) -> str:
    data = tomllib.loads(config).get("data", {}).get("name") if config else None
    return ", ".join(filter(None, (f"{seeds} seed{'' if seeds == 1 else 's'}", data)))


def _slug(name: str, slugs: Counter[str]) -> str:
    """An id of its own; without an underline, which the ids inside figures have."""
    plain = "section-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed")
    slugs[plain] += 1
    if slugs[plain] == 1:
        return plain
    return _slug(f"{plain.removeprefix('section-')}-{slugs[plain]}", slugs)


def _natural(text: str) -> tuple[Any, ...]:
    """Figure 2 before Figure 10."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if n % 2 else part for n, part in enumerate(parts))


# The page around the sections.


def _head() -> Html:
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
        ),
        el("title", "DSpodFL: what was measured"),
        el("style", Html(style)),
    )


def _header(claims: Sequence[_Entry], others: Sequence[_Entry]) -> Html:
    text = "DSpodFL simulates decentralized federated learning on clients and links that work only now and then."
    if claims:
        text += (
            " Below are figures and tables of its paper, computed anew: what the paper claims, what was found, and the "
            "numbers. Verdicts are computed from these numbers, none is a person's opinion; each says in a sentence "
            "what it rests on. Reasons that follow a 'Why' are ours."
        )
    if others:
        text += (
            f" {'Also here' if claims else 'Below'} are runs and sweeps of one's own: figures, numbers and settings."
        )
    return el("header", el("h1", "DSpodFL: what was measured"), el("p", text))


def _contents(claims: Sequence[_Entry], others: Sequence[_Entry], unfinished: Sequence[str]) -> Html:
    words = Counter(str(entry.word) for entry in claims)
    parts: list[str] = [el("h2", "Contents", id="contents")]
    if claims:
        tally = ", ".join(f"{word}: {words[word]}" for word in _WORDS if words[word])
        rows = [el("tr", _link(e), el("td", e.what), el("td", _word(str(e.word)))) for e in claims]
        parts.append(
            table(
                f"Figures and tables of the paper, and whether what it claims is borne out ({tally}).",
                ["experiment", "in the paper", "verdict"],
                rows,
                "contents",
            )
        )
    if others:
        rows = [el("tr", _link(e), el("td", e.what)) for e in others]
        parts.append(table("Runs and sweeps.", ["title", "what it is"], rows, "contents"))
    if unfinished:
        parts.append(el("p", f"Not finished, and not shown: {', '.join(unfinished)}."))
    return el("nav", *parts, aria_labelledby="contents")


def _link(entry: _Entry) -> Html:
    return el(
        "th", el("a", entry.title, href=f"#{entry.slug}"), el("small", f"{entry.name}; {entry.scale}"), scope="row"
    )


def _section(entry: _Entry) -> Html:
    return el(
        "section",
        el("h2", entry.title, id=entry.slug),
        el("p", _word(entry.word) if entry.word else "", f"{entry.what}; {entry.name}; {entry.scale}", class_="about"),
        entry.body,
        aria_labelledby=entry.slug,
    )


def _word(word: str) -> Html:
    kind, sign = _WORDS.get(word, _WORDS["cannot be told"])
    return join(el("span", el("span", sign, aria_hidden="true"), f" {word}", class_=f"word {kind}"), " ")


# Settings and provenance.


def _varied(outcome: Outcome) -> str:
    told = []
    for axis in outcome.axes:
        values = dict.fromkeys(value_text(value) for value in outcome.reading[axis])
        told.append(f"{axis} = {', '.join(values)}")
    return f"Varied: {'; '.join(told)}. Below are the settings of the first point." if told else ""


def _settings(config: str, varied: str) -> Html:
    text = el("pre", el("code", config), class_="scroll", tabindex="0", role="group", aria_label="settings, as TOML")
    return el("details", el("summary", "Settings"), el("p", varied) if varied else "", text)


def _provenance(about: Mapping[str, Any]) -> Html:
    """Scalars as a list; what is nested, as it is."""
    terms: list[tuple[str, str]] = []
    blocks = []
    for key, value in about.items():
        name = str(key).replace("_", " ")
        if key == "versions" and isinstance(value, Mapping):
            terms.append((name, ", ".join(f"{package} {version}" for package, version in value.items())))
        elif isinstance(value, Mapping | list):
            terms += [(name, ", ".join(map(str, value)))] if key == "seeds" else []
            text = json.dumps({str(key): value}, indent=2, ensure_ascii=False, default=str)
            blocks.append(el("pre", el("code", text), class_="scroll", tabindex="0", role="group", aria_label=name))
        elif value is not None:
            terms.append((name, f"{value:,.1f}" if isinstance(value, float) else str(value)))
    listed = el("dl", *(join(el("dt", name), el("dd", text)) for name, text in terms))
    return el("details", el("summary", "Where the numbers come from"), listed, *blocks)
