"""Tables of a page: what was read off, beside what the paper prints; and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from dspodfl.outcome import Outcome
from dspodfl.plots import COLOURS, NAMES, colour
from dspodfl.report.markup import Html, el, join

Row = Mapping[Any, Any]


def tables(outcome: Outcome) -> list[Html]:
    """The tables of a sweep or of a figure or table of the paper."""
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
        point = tuple(_number(row[key]) if key == "normalized_delay" else value_text(row[key]) for key in keys)
        points.setdefault(point, {})[str(row["algorithm"])] = _accuracy(row, column)
    algorithms = _algorithms(outcome)
    heads = [el("th", key.replace("_", " ") if key not in outcome.axes else key, scope="col") for key in keys]
    heads += [el("th", _named(a, algorithms), scope="col", class_="of") for a in algorithms]
    rows = [
        el("tr", *(el("th", key, scope="row") for key in point), *(cells.get(a, el("td", "–")) for a in algorithms))
        for point, cells in points.items()
    ]
    return table(told, heads, rows, "numbers")


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
    return el("td", f"{mean:.3f} ± {std:.3f}" if _known(mean) else "–", *(el("small", note) for note in notes))


def _delay_table(outcome: Outcome, records: Iterable[Row]) -> Html:
    """A group for each point and target; algorithms by parts of the delay."""
    groups: dict[str, list[Row]] = {}
    for row in records:
        point = [f"{axis} = {value_text(row[axis])}" for axis in outcome.axes]
        groups.setdefault(", ".join((*point, f"to accuracy {value_text(row['target'])}")), []).append(row)
    parts = ("processing", "transmission", "total")
    algorithms = _algorithms(outcome)
    rows = []
    for group, members in groups.items():
        rows.append(el("tr", el("th", group, scope="rowgroup", colspan="5"), class_="group"))
        for row in members:
            cells = []
            for part in parts:
                printed = row.get(f"printed_{part}")
                ours = row[f"{part}_median"]
                over = f" ({ours / printed:.2f}×)" if _known(printed) and _known(ours) and printed else ""
                note = el("small", f"paper {_number(printed)}{over}") if _known(printed) else ""
                quartiles = {name: row[f"{part}_{name}"] for name in ("median", "quartile1", "quartile3")}
                least = row.get(f"{part}_least")
                late = f"> {_number(least)}" if not _known(ours) and _known(least) else ""
                cells.append(el("td", late or _delay(quartiles, int(row["seeds"])), note))
            reached = el("td", f"{_count(row['reached'])}/{_count(row['seeds'])}")
            rows.append(el("tr", el("th", _named(str(row["algorithm"]), algorithms), scope="row"), *cells, reached))
    told = (
        "Raw delay until the accuracy is first reached: median [quartiles] over all seeds, a run that never got there "
        "being infinitely late; > where the runs of half of the seeds had ended without it."
    )
    if any(_is_printed(members) for members in groups.values()):
        told += " Below it, the number printed in the paper, and how many times as much ours is."
    heads = [
        el("th", "algorithm", scope="col"),
        *(el("th", p, scope="col", class_="of") for p in (*parts, "reached")),
    ]
    return table(told, heads, rows, "numbers")


def summary_table(found: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any]) -> Html:
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
        note = el("small", f"{m['diverged']} of {m['seeds']} diverged") if m["diverged"] else ""
        cells = [el("td", text) for text in _measured(m, classified)]
        rows.append(el("tr", el("th", _named(name, list(found)), note, scope="row"), *cells))
    told = (
        f"After {_count(about['iterations_done'])} of {_count(about['iterations'])} iterations. Accuracies are mean ± "
        "standard deviation over seeds, delays raw totals: median [quartiles] over seeds; n/m where only n of m got "
        "there, the others being infinitely late."
    )
    heads = [el("th", head, scope="col", class_="of") for head in (*columns, "delay in all")]
    return table(told, [el("th", "algorithm", scope="col"), *heads], rows, "numbers")


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


def table(caption: str, heads: Sequence[str], rows: Sequence[Html], kind: str) -> Html:
    """A table that scrolls in its own box."""
    top = [head if isinstance(head, Html) else el("th", head, scope="col") for head in heads]
    whole = el(
        "table",
        el("caption", el("span", caption)),
        el("thead", el("tr", *top)),
        el("tbody", *rows),
        class_=kind,
    )
    return el("div", whole, class_="scroll", tabindex="0", role="group", aria_label=f"table: {caption}")


def _algorithms(outcome: Outcome) -> list[str]:
    return [str(name) for name in dict.fromkeys(outcome.reading["algorithm"])]


def _named(algorithm: str, algorithms: Sequence[str]) -> Html:
    """The name of an algorithm, with the colour that it has in the figure."""
    paint = colour(algorithm, [a for a in algorithms if a not in COLOURS])
    dot = el("span", "", class_="dot", style=f"background:{paint}", aria_hidden="true")
    return join(dot, NAMES.get(algorithm, algorithm))


def _known(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def value_text(value: Any) -> str:
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
