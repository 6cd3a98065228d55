"""One self-contained page about runs, sweeps and reproductions.

Nothing is fetched when it is opened: the style, the figures and the pictures are inside, and there is no script.
"""

from __future__ import annotations

import base64
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeGuard
from xml.etree import ElementTree

import pandas as pd

from dspodfl.errors import DataError
from dspodfl.journal import JOURNAL
from dspodfl.outcome import RESULT, Outcome
from dspodfl.plots import COLOURS, NAMES, colour, picture
from dspodfl.results import Result

_SUMMARY, _GRID = "summary.json", "grid.json"
_WORDS = {
    "holds": ("holds", "✓"),
    "holds in part": ("part", "◐"),
    "does not hold": ("not", "✗"),
    "cannot be told": ("untold", "?"),
}
"""The class and the sign of a verdict."""
_DRAWN = {"g", "defs", "path", "use", "clipPath", "rect", "circle", "ellipse", "line", "text", "tspan", "image"}
"""The elements of a figure that are taken over; what else an SVG may hold could act on the whole page."""
_UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, ElementTree.ParseError)
Row = Mapping[Any, Any]


class Html(str):
    """Text that is HTML already; any other string is escaped where it is put into a page."""

    __slots__ = ()


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
            make = _outcome if (folder / RESULT).is_file() else _run
            entries.append(make(folder, number, slugs))
        except _UNREADABLE as error:
            raise DataError(f"{folder}: a file in it is missing or damaged ({error})") from error
    entries.sort(key=lambda entry: entry.order)
    claims, others = [e for e in entries if e.word], [e for e in entries if not e.word]
    main = _el("main", *map(_section, entries))
    body = _el("body", _header(claims, others), _contents(claims, others, unfinished), main)
    return "<!DOCTYPE html>\n" + _el("html", _head(), body, lang="en")


def _collect(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The folders of runs, sweeps and reproductions, each once; and the names of those that are not finished."""
    found: dict[Path, Path] = {}
    unfinished: list[str] = []
    for folder in folders:
        if not folder.is_dir():
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
    return (folder / _GRID).is_file() or (folder / JOURNAL).is_file()


def _holds(folder: Path) -> bool:
    run = (folder / _SUMMARY).is_file() and not (folder / JOURNAL).is_file()
    return (folder / RESULT).is_file() or run


def _outcome(folder: Path, number: int, slugs: Counter[str]) -> _Entry:
    """The section of a sweep or a reproduction."""
    outcome = Outcome.load(folder)
    claimed = bool(outcome.paper or outcome.says or outcome.verdicts)
    file = folder / "figure.svg"
    drawing = file.read_bytes() if file.is_file() else picture(outcome.plot(), "svg")
    caption = _caption(outcome)
    label = f"{outcome.title}. {caption} The numbers are in the table below."
    found = (
        _el("h3", "What was found"),
        _el("ul", *(_el("li", _word(v.word), v.sentence) for v in outcome.verdicts), class_="verdicts"),
    )
    body = _join(
        _el("h3", "What the paper claims") if outcome.says else "",
        _el("p", " ".join(outcome.says.split()), class_="claim") if outcome.says else "",
        *(found if outcome.verdicts else ()),
        _figure(_inline(drawing, number, label), caption, f"figure of {outcome.title}"),
        _el("h3", "Numbers"),
        *_tables(outcome),
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
        told = "median processing (solid) and transmission (pale), stacked; the lines are quartiles of the total"
        return f"Raw delay until target accuracies are reached: {told}."
    if outcome.kind == "accuracy_table":
        return "Accuracy after numbers of iterations: mean and standard deviation over seeds."
    against = outcome.axes[0] if outcome.kind == "sweep" else "delay"
    return f"Accuracy against {against}: mean and 1-sigma band over seeds."


def _run(folder: Path, number: int, slugs: Counter[str]) -> _Entry:
    """The section of a run; its models and events may be large, and are not read."""
    summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
    config = (folder / "config.toml").read_text(encoding="utf-8")
    title = Result(pd.DataFrame(), pd.DataFrame(), {}, summary, config).title
    files = [folder / "accuracy_vs_delay.svg", folder / "network.png"]
    lost = [file.name for file in files if not file.is_file()]
    if lost:
        raise DataError(f"{folder}: has no {lost[0]}; draw it with: dspodfl show {folder}")
    drawing, network = (file.read_bytes() for file in files)
    about = summary["study"]
    caption = "Accuracy (in regression, the error) against delay: mean and 1-sigma band over seeds."
    label = f"{title}. {caption} The numbers are in the table below."
    alt = "The graph of the first seed: clients as dots, the larger the higher their SGD rate, and links between them."
    image = _el("img", src=f"data:image/png;base64,{base64.b64encode(network).decode()}", alt=alt)
    body = _join(
        _figure(_inline(drawing, number, label), caption, f"figure of {title}"),
        _el("h3", "Numbers"),
        _summary_table(summary["algorithms"], about),
        _el("h3", "Network"),
        _figure(image, "The graph of the first seed.", f"network of {title}"),
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
    style = (Path(__file__).parent / "report_files" / "style.css").read_text(encoding="utf-8")
    return _el(
        "head",
        _el("meta", charset="utf-8"),
        _el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _el(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
        ),
        _el("title", "DSpodFL: what was measured"),
        _el("style", Html(style)),
    )


def _header(claims: Sequence[_Entry], others: Sequence[_Entry]) -> Html:
    text = "DSpodFL simulates decentralized federated learning on clients and links that work only now and then."
    if claims:
        text += (
            " Below are figures and tables of its paper, computed anew: what the paper claims, what was found, and the "
            "numbers. Verdicts are computed from these numbers, none is a person's opinion; each says in a sentence "
            "what it rests on."
        )
    if others:
        text += (
            f" {'Also here' if claims else 'Below'} are runs and sweeps of one's own: figures, numbers and settings."
        )
    return _el("header", _el("h1", "DSpodFL: what was measured"), _el("p", text))


def _contents(claims: Sequence[_Entry], others: Sequence[_Entry], unfinished: Sequence[str]) -> Html:
    words = Counter(str(entry.word) for entry in claims)
    parts: list[str] = [_el("h2", "Contents", id="contents")]
    if claims:
        tally = ", ".join(f"{word}: {words[word]}" for word in _WORDS if words[word])
        rows = [_el("tr", _link(e), _el("td", e.what), _el("td", _word(str(e.word)))) for e in claims]
        parts.append(
            _table(
                f"Figures and tables of the paper, and whether what it claims is borne out ({tally}).",
                ["experiment", "in the paper", "verdict"],
                rows,
                "contents",
            )
        )
    if others:
        rows = [_el("tr", _link(e), _el("td", e.what)) for e in others]
        parts.append(_table("Runs and sweeps.", ["title", "what it is"], rows, "contents"))
    if unfinished:
        parts.append(_el("p", f"Not finished, and not shown: {', '.join(unfinished)}."))
    return _el("nav", *parts, aria_labelledby="contents")


def _link(entry: _Entry) -> Html:
    return _el(
        "th", _el("a", entry.title, href=f"#{entry.slug}"), _el("small", f"{entry.name}; {entry.scale}"), scope="row"
    )


def _section(entry: _Entry) -> Html:
    return _el(
        "section",
        _el("h2", entry.title, id=entry.slug),
        _el("p", _word(entry.word) if entry.word else "", f"{entry.what}; {entry.name}; {entry.scale}", class_="about"),
        entry.body,
        aria_labelledby=entry.slug,
    )


def _word(word: str) -> Html:
    kind, sign = _WORDS.get(word, _WORDS["cannot be told"])
    return _join(_el("span", _el("span", sign, aria_hidden="true"), f" {word}", class_=f"word {kind}"), " ")


# Figures.


def _figure(drawing: Html, caption: str, label: str) -> Html:
    card = _el("div", drawing, class_="card scroll", tabindex="0", role="group", aria_label=label)
    return _el("figure", card, _el("figcaption", caption))


def _inline(svg: bytes, number: int, label: str) -> Html:
    """An SVG for the inside of a page: its ids made its own, without what could act outside of it."""
    root = ElementTree.fromstring(svg)  # noqa: S314  expat bounds what entities grow to
    inside = _join(*(_drawn(child, f"figure_{number}_") for child in root))
    size = {key: root.get(key) for key in ("width", "height", "viewBox")}
    width = re.fullmatch(r"[0-9.]+(pt|px)?", str(size["width"]))
    return _el("svg", inside, **size, style=f"--width:{width[0]}" if width else None, role="img", aria_label=label)


def _drawn(element: ElementTree.Element, prefix: str) -> Html:
    tag = element.tag.rpartition("}")[2]
    if tag not in _DRAWN:
        return Html("")
    attributes = {}
    for name, value in element.attrib.items():
        name = name.rpartition("}")[2]
        if name == "id":
            value = prefix + value
        elif name == "href" and value.startswith("#"):
            value = f"#{prefix}{value[1:]}"
        elif name.startswith("on") or (name == "href" and not value.startswith("data:image/png;")):
            continue
        value = re.sub(r"url\(#", f"url(#{prefix}", value)
        if not re.search(r"url\((?!#)", value):
            attributes[name] = value
    text = element.text if element.text and element.text.strip() else ""
    return _el(tag, text, *(_drawn(child, prefix) for child in element), **attributes)


# Tables.


def _tables(outcome: Outcome) -> list[Html]:
    records = outcome.reading.to_dict("records")
    if outcome.kind == "delay_table":
        return [_delay_table(outcome, records)]
    if outcome.kind == "accuracy_table":
        told = "Accuracy after numbers of iterations: mean ± standard deviation over seeds."
        printed = " Below it, the number printed in the paper, and ours less that." if _is_printed(records) else ""
        return [_accuracy_table(outcome, records, told + printed, "accuracy", [*outcome.axes, "iteration"])]
    first = records[0]
    if "delay" not in first:
        told = f"Accuracy after {_count(first['iteration'])} iterations: mean ± standard deviation over seeds."
        return [_accuracy_table(outcome, records, told, "accuracy", outcome.axes)]
    told = (
        f"Accuracy where the raw total delay first reaches {first['delay']:g}: mean ± standard deviation over the "
        "seeds that got there; n/m where only n of m did."
    )
    tables = [_accuracy_table(outcome, records, told, "accuracy", outcome.axes)]
    if "normalized_mean" in first:
        axes = [*outcome.axes, "normalized_delay"]
        told = "Accuracy at the largest normalized delay that all runs of a point got to: mean ± standard deviation."
        tables.append(_accuracy_table(outcome, records, told, "normalized", axes))
    return tables


def _is_printed(records: Iterable[Row]) -> bool:
    return any(_known(value) for row in records for key, value in row.items() if str(key).startswith("printed_"))


def _accuracy_table(outcome: Outcome, records: Iterable[Row], told: str, column: str, keys: Sequence[str]) -> Html:
    """Points by algorithms."""
    points: dict[tuple[str, ...], dict[str, Html]] = {}
    for row in records:
        point = tuple(_number(row[key]) if key == "normalized_delay" else _value(row[key]) for key in keys)
        points.setdefault(point, {})[str(row["algorithm"])] = _accuracy(row, column)
    algorithms = _algorithms(outcome)
    heads = [_el("th", key.replace("_", " ") if key not in outcome.axes else key, scope="col") for key in keys]
    heads += [_el("th", _named(a, algorithms), scope="col", class_="of") for a in algorithms]
    rows = [
        _el("tr", *(_el("th", key, scope="row") for key in point), *(cells.get(a, _el("td", "–")) for a in algorithms))
        for point, cells in points.items()
    ]
    return _table(told, heads, rows, "numbers")


def _accuracy(row: Row, column: str) -> Html:
    mean, std = row[f"{column}_mean"], row[f"{column}_std"]
    notes = []
    if column == "accuracy":
        reached, seeds = row.get("reached"), row.get("seeds")
        if _known(reached) and _known(seeds) and reached < seeds:
            notes.append(f"{_count(reached)}/{_count(seeds)}")
        if _known(row.get("diverged")) and row["diverged"]:
            notes.append(f"{_count(row['diverged'])} diverged")
        printed = row.get("printed_accuracy")
        if _known(printed):
            away = f", {mean - printed:+.3f}".replace("-", "−") if _known(mean) else ""
            notes.append(f"paper {printed:.2f}{away}")
    return _el("td", f"{mean:.3f} ± {std:.3f}" if _known(mean) else "–", *(_el("small", note) for note in notes))


def _delay_table(outcome: Outcome, records: Iterable[Row]) -> Html:
    """A group for each point and target; algorithms by parts of the delay."""
    groups: dict[str, list[Row]] = {}
    for row in records:
        point = [f"{axis} = {_value(row[axis])}" for axis in outcome.axes]
        groups.setdefault(", ".join((*point, f"to accuracy {_value(row['target'])}")), []).append(row)
    parts = ("processing", "transmission", "total")
    algorithms = _algorithms(outcome)
    rows = []
    for group, members in groups.items():
        rows.append(_el("tr", _el("th", group, scope="rowgroup", colspan="5"), class_="group"))
        for row in members:
            cells = []
            for part in parts:
                printed = row.get(f"printed_{part}")
                ours = row[f"{part}_median"]
                over = f" ({ours / printed:.2f}×)" if _known(printed) and _known(ours) and printed else ""
                note = _el("small", f"paper {_number(printed)}{over}") if _known(printed) else ""
                quartiles = {name: row[f"{part}_{name}"] for name in ("median", "quartile1", "quartile3")}
                cells.append(_el("td", _delay(quartiles, int(row["seeds"])), note))
            reached = _el("td", f"{_count(row['reached'])}/{_count(row['seeds'])}")
            rows.append(_el("tr", _el("th", _named(str(row["algorithm"]), algorithms), scope="row"), *cells, reached))
    told = (
        "Raw delay until the accuracy is first reached: median [quartiles] over all seeds, a run that never got there "
        "being infinitely late."
    )
    if any(_is_printed(members) for members in groups.values()):
        told += " Below it, the number printed in the paper, and how many times as much ours is."
    heads = [
        _el("th", "algorithm", scope="col"),
        *(_el("th", p, scope="col", class_="of") for p in (*parts, "reached")),
    ]
    return _table(told, heads, rows, "numbers")


def _summary_table(found: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any]) -> Html:
    """What a run came to, by algorithm."""
    measured = list(found.values())
    # all may have diverged: then there is no accuracy, and no loss either
    classified = any(_known(m["final_accuracy"]["mean"]) for m in measured) or not any(
        _known(m["final_loss"]["mean"]) for m in measured
    )
    columns = ["accuracy"] if classified else ["loss", "‖θ̄ − θ*‖²"]
    columns += [f"delay to {target['accuracy']:g}" for target in measured[0]["targets"] if classified]
    columns += [f"accuracy at delay {at['delay']:g}" for at in measured[0]["at_delay"] if classified]
    rows = []
    for name, m in found.items():
        note = _el("small", f"{m['diverged']} of {m['seeds']} diverged") if m["diverged"] else ""
        cells = [_el("td", text) for text in _measured(m, classified)]
        rows.append(_el("tr", _el("th", _named(name, list(found)), note, scope="row"), *cells))
    told = (
        f"After {_count(about['iterations_done'])} of {_count(about['iterations'])} iterations. Accuracies are mean ± "
        "standard deviation over seeds, delays raw totals: median [quartiles] over seeds; n/m where only n of m got "
        "there, the others being infinitely late."
    )
    heads = [_el("th", head, scope="col", class_="of") for head in (*columns, "delay in all")]
    return _table(told, [_el("th", "algorithm", scope="col"), *heads], rows, "numbers")


def _measured(found: Mapping[str, Any], classified: bool) -> list[str]:
    seeds = found["seeds"]
    in_all = _delay(found["final_delay"]["delay_total"], seeds)
    if not classified:
        return [_spread(found["final_loss"]), _spread(found["final_optimality_error"]), in_all]
    cells = [_spread(found["final_accuracy"])]
    for here in (*found["targets"], *found["at_delay"]):
        text = _spread(here["accuracy"]) if "delay" in here else _delay(here["delay_total"], seeds)
        cells.append(text if here["reached"] == seeds else f"{text} {here['reached']}/{seeds}")
    return [*cells, in_all]


def _table(caption: str, heads: Sequence[str], rows: Sequence[Html], kind: str) -> Html:
    """A table that scrolls in its own box."""
    top = [head if isinstance(head, Html) else _el("th", head, scope="col") for head in heads]
    whole = _el(
        "table",
        _el("caption", _el("span", caption)),
        _el("thead", _el("tr", *top)),
        _el("tbody", *rows),
        class_=kind,
    )
    return _el("div", whole, class_="scroll", tabindex="0", role="group", aria_label=f"table: {caption}")


def _algorithms(outcome: Outcome) -> list[str]:
    return [str(name) for name in dict.fromkeys(outcome.reading["algorithm"])]


def _named(algorithm: str, algorithms: Sequence[str]) -> Html:
    """The name of an algorithm, with the colour that it has in the figure."""
    paint = colour(algorithm, [a for a in algorithms if a not in COLOURS])
    dot = _el("span", "", class_="dot", style=f"background:{paint}", aria_hidden="true")
    return _join(dot, NAMES.get(algorithm, algorithm))


# Settings and provenance.


def _varied(outcome: Outcome) -> str:
    told = []
    for axis in outcome.axes:
        values = dict.fromkeys(_value(value) for value in outcome.reading[axis])
        told.append(f"{axis} = {', '.join(values)}")
    return f"Varied: {'; '.join(told)}. Below are the settings of the first point." if told else ""


def _settings(config: str, varied: str) -> Html:
    text = _el("pre", _el("code", config), class_="scroll", tabindex="0", role="group", aria_label="settings, as TOML")
    return _el("details", _el("summary", "Settings"), _el("p", varied) if varied else "", text)


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
            blocks.append(_el("pre", _el("code", text), class_="scroll", tabindex="0", role="group", aria_label=name))
        elif value is not None:
            terms.append((name, f"{value:,.1f}" if isinstance(value, float) else str(value)))
    listed = _el("dl", *(_join(_el("dt", name), _el("dd", text)) for name, text in terms))
    return _el("details", _el("summary", "Where the numbers come from"), listed, *blocks)


# Numbers as text.


def _known(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _value(value: Any) -> str:
    """A point of an axis, an iteration or a target."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _count(value: Any) -> str:
    return f"{int(value):,}"


def _number(value: Any) -> str:
    """A delay; one that is missing was never over."""
    if not _known(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _delay(quartiles: Mapping[str, Any], seeds: int) -> str:
    median = _number(quartiles["median"])
    if seeds < 2 or not _known(quartiles["quartile1"]):
        return median
    return f"{median} [{_number(quartiles['quartile1'])}, {_number(quartiles['quartile3'])}]"


def _spread(value: Mapping[str, Any]) -> str:
    mean, std = value["mean"], value["std"]
    if not _known(mean) or not _known(std):
        return "–"
    plain = mean == 0 or 1e-3 <= abs(mean) < 1e4
    return f"{mean:.3f} ± {std:.3f}" if plain else f"{mean:.2e} ± {std:.1e}"


# HTML.


def _el(name: str, /, *inside: str, **attributes: str | None) -> Html:
    """An element: what is inside and its attributes are escaped, unless they are HTML; ``class_`` is ``class``."""
    told = "".join(f' {_attribute(key)}="{escape(value)}"' for key, value in attributes.items() if value is not None)
    if name in ("meta", "img"):
        return Html(f"<{name}{told}>")
    content = _join(*inside)
    # only the elements of an SVG may be closed at once
    if not content and name in _DRAWN:
        return Html(f"<{name}{told}/>")
    end = "\n" if name in ("html", "head", "body", "section", "nav", "main", "figure", "table", "tr", "details") else ""
    return Html(f"<{name}{told}>{content}</{name}>{end}")


def _attribute(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _join(*parts: str) -> Html:
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))
