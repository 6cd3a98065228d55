"""One self-contained page about runs, sweeps and reproductions.

Nothing is fetched when it is opened, and nothing runs: there is no script, every text is escaped by the template, and
pictures are images in data URLs, in which a browser neither runs scripts nor loads anything.
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

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dspodfl.analysis import Table, complete, formatting
from dspodfl.analysis.figures import axis_name, picture, style
from dspodfl.errors import DataError
from dspodfl.experiments import ExperimentResult, is_outcome, quantity
from dspodfl.study import PICTURES, Result, read_config, read_parquet, read_summary
from dspodfl.study.store import Folder
from dspodfl.ui.html import sources, tables

_HERE = Path(__file__).parent
_SIGNS = {
    "holds": ("holds", "✓"),
    "holds in part": ("part", "◐"),
    "does not hold": ("not", "✗"),
    "cannot be told": ("untold", "?"),
}
"""The class and the sign of a status."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""What has no place in a page: control characters, halves of surrogate pairs, marks that turn the direction of text."""


@dataclass(frozen=True)
class Page:
    """The page, and what was left out of it."""

    html: str
    skipped: list[str]
    """Folders that are not shown, each with the reason."""


@dataclass(frozen=True)
class Picture:
    """A picture in a page."""

    source: str
    alt: str
    caption: str
    label: str
    problem: str = ""
    """Why there is none, where there is none."""


@dataclass(frozen=True)
class Section:
    """The section of one folder."""

    slug: str
    name: str
    title: str
    what: str
    scale: str
    """How many seeds on which data: a quick try must not be taken for the whole."""
    order: tuple[Any, ...]
    """Those of the paper by their place in it, then the others as they were given."""
    status: str | None
    """Of the claim checks; None where nothing is claimed."""
    claim: str
    explanation: str
    checks: list[tuple[str, str]]
    figures: list[Picture]
    tables: list[Table]
    dots: dict[str, str]
    """The name of each algorithm -> its colour in the figures."""
    varied: str
    config: str
    about: list[tuple[str, str]]
    blocks: list[tuple[str, str]]


def page(folders: Sequence[Path]) -> str:
    """Return the page about what the folders hold; see `compose`."""
    return compose(folders).html


def compose(folders: Sequence[Path]) -> Page:
    """Write the page about what the folders hold. What is unfinished or damaged is skipped, and named on the page.

    Args:
        folders: Folders of runs, sweeps or reproductions, or folders of such.

    Raises:
        DataError: one of them is no folder, or nothing in them can be shown.
    """
    found = sources.collect(folders)
    skipped = list(found.skipped)
    slugs: Counter[str] = Counter()
    sections = []
    for folder in found.folders:
        try:
            make = _of_outcome if is_outcome(folder) else _of_run
            sections.append(make(folder, slugs))
        except Exception as error:  # whatever a file holds, the other folders are shown
            skipped.append(_reason(folder, error))
    if not sections:
        raise DataError("; ".join(skipped) or "no folder was given")
    sections.sort(key=lambda section: section.order)
    return Page(_rendered(sections, skipped), skipped)


def _reason(folder: Path, error: Exception) -> str:
    text = str(error).removeprefix(f"{folder}: ")
    text = text if isinstance(error, DataError) else f"a file in it is damaged ({type(error).__name__}: {text})"
    return f"{folder}: {style.shortened(text, 300)}"


def _rendered(sections: Sequence[Section], skipped: Sequence[str]) -> str:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["sign"] = lambda word: _SIGNS.get(word, _SIGNS["cannot be told"])
    claims = [section for section in sections if section.status]
    counts = Counter(str(section.status) for section in claims)
    text = environment.get_template("page.html").render(
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),  # noqa: S704  our own file
        sections=sections,
        claims=claims,
        others=[section for section in sections if not section.status],
        tally=", ".join(f"{word}: {counts[word]}" for word in _SIGNS if counts[word]),
        skipped=list(skipped),
    )
    return text.strip() + "\n"


def _shown(value: object) -> object:
    """Text as a page can hold it; the template escapes it afterwards."""
    if isinstance(value, Markup):
        return value
    return _CONTROL.sub("\ufffd", value) if isinstance(value, str) else value


def _prose(text: str) -> Markup:
    """Text in lines of any length as one paragraph's; what is between `…` is code."""
    pieces = re.split(r"`([^`]+)`", " ".join(str(_shown(text)).split()))
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(piece) if at % 2 else piece for at, piece in enumerate(pieces))


# --- sections ---------------------------------------------------------------------------------------------------


def _of_outcome(folder: Path, slugs: Counter[str]) -> Section:
    """The section of a sweep or a reproduction."""
    outcome = ExperimentResult.load(folder)
    name, title = str(outcome.name), str(outcome.heading)
    claimed = bool(outcome.paper or outcome.claim or outcome.checks)
    if (folder / "figure.svg").is_file():
        drawing = sources.read(folder, "figure.svg")
    else:
        drawing = picture(outcome.plot(), "svg")
    about, blocks = _provenance(outcome.about)
    return Section(
        slug=_slug(name, slugs),
        name=name,
        title=title,
        what=str(outcome.paper) or "a sweep",
        scale=_scale(int(outcome.metrics["seed"].nunique()), outcome.config),
        order=(False, _natural(str(outcome.paper)), name) if claimed else (True,),
        status=str(outcome.status) if claimed else None,
        claim=str(outcome.claim),
        explanation=str(outcome.explanation),
        checks=[(str(c.status), str(c.sentence)) for c in outcome.checks],
        figures=[_figure(drawing, title, _caption(outcome))],
        tables=tables.of_outcome(outcome),
        dots=_dots([str(a) for a in dict.fromkeys(outcome.aggregates["algorithm"])]),
        varied=_varied(outcome),
        config=str(outcome.config),
        about=about,
        blocks=blocks,
    )


def _of_run(folder: Path, slugs: Counter[str]) -> Section:
    """The section of a run; its models and events may be large, and are not read."""
    summary = read_summary(Folder(folder))
    config = read_config(Folder(folder))
    result = Result(pd.DataFrame(), pd.DataFrame(), {}, summary, config)
    try:
        metrics = complete(read_parquet(sources.read(folder, "metrics.parquet")))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: metrics.parquet is damaged ({error})") from error
    study = summary["study"]
    about, blocks = _provenance(study)
    figures = [_picture(folder, drawn.files[-1], drawn.title.format(result.title), drawn.caption) for drawn in PICTURES]
    name = folder.resolve().name
    return Section(
        slug=_slug(name, slugs),
        name=name,
        title=result.title,
        what="a run",
        scale=_scale(len(study["seeds"]), config),
        order=(True,),
        status=None,
        claim="",
        explanation="",
        checks=[],
        figures=figures,
        tables=[tables.of_run(metrics, result.config, study)],
        dots=_dots([str(a) for a in dict.fromkeys(metrics["algorithm"])]),
        varied="",
        config=config,
        about=about,
        blocks=blocks,
    )


def _picture(folder: Path, name: str, title: str, caption: str) -> Picture:
    """A picture of a folder; where there is none, how to draw it."""
    try:
        return _figure(sources.read(folder, name), title, caption, "png" if name.endswith("png") else "svg+xml")
    except DataError as error:
        text = str(error).removeprefix(f"{folder}: ")
        return Picture("", "", caption, title, f"{text}; draw it with: dspodfl show {folder}")


def _figure(content: bytes, title: str, caption: str, kind: str = "svg+xml") -> Picture:
    """An image in a data URL: whatever the file holds, a browser draws it and runs nothing of it."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Picture(source, f"{title}. {caption} The numbers are in the table below.", caption, f"figure of {title}")


def _caption(outcome: ExperimentResult) -> str:
    """What is to be seen in the figure."""
    if outcome.kind == "delay_table":
        return "Raw delay until target accuracies are reached, and how it divides into processing and transmission."
    if outcome.kind == "accuracy_table":
        return "Accuracy after numbers of iterations."
    if outcome.kind == "tuned":
        return "Accuracy against what it costs, each algorithm at the learning rate that other seeds choose."
    against = axis_name(outcome.axes[0]) if outcome.kind == "sweep" else "delay"
    return f"{quantity(outcome.aggregates)} against {against}."


def _dots(algorithms: list[str]) -> dict[str, str]:
    return {style.name(a): style.colour(a, style.custom(algorithms)) for a in algorithms}


def _scale(seeds: int, config: str) -> str:
    data = tomllib.loads(config).get("data", {}).get("name") if config else None
    return ", ".join(filter(None, (formatting.seeds(seeds), str(data) if data else "")))


def _slug(name: str, slugs: Counter[str]) -> str:
    """An id that no other section has."""
    plain = "section-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "unnamed")
    slugs[plain] += 1
    if slugs[plain] == 1:
        return plain
    return _slug(f"{plain.removeprefix('section-')}-{slugs[plain]}", slugs)


def _natural(text: str) -> tuple[Any, ...]:
    """Figure 2 before Figure 10."""
    parts = re.split(r"([0-9]{1,9})", text)
    return tuple(int(part) if n % 2 else part for n, part in enumerate(parts))


def _varied(outcome: ExperimentResult) -> str:
    text = []
    rows = outcome.metrics if outcome.kind == "tuned" else outcome.aggregates
    for axis in outcome.axes:
        values = dict.fromkeys(formatting.setting(value) for value in rows[axis])
        text.append(f"{axis} = {', '.join(values)}")
    return f"Varied: {'; '.join(text)}. Below are the settings of the first point." if text else ""


def _provenance(about: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Where numbers come from: scalars as terms; what is nested, as JSON."""
    terms: list[tuple[str, str]] = []
    blocks: list[tuple[str, str]] = []
    for key, value in about.items():
        name = str(key).replace("_", " ")
        if key == "versions" and isinstance(value, Mapping):
            terms.append((name, ", ".join(f"{package} {version}" for package, version in value.items())))
        elif isinstance(value, Mapping | list):
            terms += [(name, ", ".join(map(str, value)))] if key == "seeds" else []
            blocks.append((name, json.dumps({str(key): value}, indent=2, ensure_ascii=False, default=str)))
        elif key == "wall_seconds":
            terms.append(("wall time", formatting.seconds(value)))
        elif value is not None:
            terms.append((name, formatting.setting(value)))
    return terms, blocks
