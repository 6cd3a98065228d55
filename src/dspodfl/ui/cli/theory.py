"""Commands about the theory: bound, sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dspodfl.errors import DataError
from dspodfl.study import for_command, say, terminal
from dspodfl.ui.cli.options import number, whole
from dspodfl.ui.cli.run import importable
from dspodfl.ui.console.results import ERR, OUT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dspodfl.config import Config
    from dspodfl.theory.assess import Appraisal, Case, Comparison, Statement
    from dspodfl.theory.formulas import Hypothesis


theory = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Compute the paper's bounds for a study: conditions, learning rates, rates and gaps.",
)

Study = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration of the study.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a configuration key: table.key=value. Repeatable."),
]
Algorithms = Annotated[str | None, typer.Option(metavar="A,B", help="Algorithms to compare, separated by commas.")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.", parser=whole)]
Epsilon = Annotated[
    float | None,
    typer.Option(
        metavar="E",
        help="Report the iterations to this error; default: twice the gap, or 1% of the initial error.",
        parser=number,
    ),
]
Reach = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help="Linear regression: take σ as the maximum over ‖θ − θ*‖ ≤ R; default: the initial distance.",
        parser=number,
    ),
]
Points = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Other models: number of points of the trajectory at which constants are measured.",
        parser=whole,
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Also write tables, numbers and figures to DIR.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result in DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(theory, name="theory")


@theory.command()
def bound(
    config: Study,
    changes: Set = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    epsilon: Epsilon = None,
    reach: Reach = None,
    points: Points = 30,
    compare: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Compare the bound with the measured run in this folder.")
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compute constants, ρ̃, conditions, safe learning rates, predicted rate and gap, and iterations to ε."""
    from dspodfl.study import Result
    from dspodfl.theory.assess import appraise, matching
    from dspodfl.theory.assess import compare as lay_over

    resolved = _load(config, changes, algorithms, seeds)
    _claim(out, overwrite)
    result = None if compare is None else Result.load(compare)
    for note in result.notes if result is not None else ():
        ERR.print(Text(note), soft_wrap=True)
    if result is not None:
        resolved = matching(resolved, result, str(compare))
    with for_command(quiet=as_json) as progress:
        found = appraise(resolved, epsilon, reach, points, on_progress=progress.stage)
    laid = None if result is None else lay_over(found, result, str(compare))
    record = found.record() | ({} if laid is None else {"compared": _records(laid.verdicts), "inside": laid.inside})
    if out is not None:
        from dspodfl.analysis.figures import bound_course
        from dspodfl.theory.assess import predicted

        curves = predicted(found) if laid is None else laid.table
        tables = {"table.csv": found.table(), "curves.csv": curves}
        _write(out, "theory bound", record, tables, bound_course(curves, _title(resolved)) if len(curves) else None)
    if as_json:
        say(json.dumps(record, ensure_ascii=False))
        return
    _print(found, laid)
    if out is not None:
        OUT.print(Text(f"written: {out}"), soft_wrap=True)


@theory.command()
def sweep(
    config: Study,
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="KEY=V,V",
            help="Values of a key: table.key=value,value. Repeatable; the grid is the product.",
        ),
    ],
    changes: Set = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    epsilon: Epsilon = None,
    reach: Reach = None,
    points: Points = 30,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compute ρ̃, safe learning rates, rate and gap over a grid of settings; nothing is trained."""
    from dspodfl.analysis import METRICS
    from dspodfl.config import Axis, cells
    from dspodfl.theory.assess import over_cells

    base = _load(config, changes, algorithms, seeds)
    axes = [Axis.parse(text) for text in over]
    grid = cells(base.model_dump(exclude_unset=True), axes, METRICS)
    _claim(out, overwrite)
    with for_command(quiet=as_json) as progress:
        table = over_cells(grid, epsilon, reach, points, progress.stage)
    names = [axis.name for axis in axes]
    record = {"axes": names, "rows": _records(table)}
    if out is not None:
        from dspodfl.analysis.figures import bound_sweep as drawn

        _write(out, "theory sweep", record, {"table.csv": table}, drawn(table, names, _title(base)))
    if as_json:
        say(json.dumps(record, ensure_ascii=False))
        return
    print_sweep(table, names, config.stem)
    if out is not None:
        OUT.print(Text(f"picture: {out / 'figure.png'}\ntables:  {out}"), soft_wrap=True)


def print_sweep(table: pd.DataFrame, names: Sequence[str], of: str) -> None:
    """Print the table of a sweep.

    Args:
        table: A row for each point and algorithm.
        names: The axes.
        of: What was varied.
    """
    from dspodfl.analysis.figures import axis_head, axis_name
    from dspodfl.theory.assess import BOUND_COLUMNS

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    convex = bool(table["radius"].notna().any())
    told = [name for name in BOUND_COLUMNS if table[name].notna().any() and not (convex and name == "mean_gradient")]
    for name in (*names, *told):
        left = name in (*names, "algorithm")
        head = axis_head(name) if name in names else BOUND_COLUMNS[name]
        shown.add_column(Text(head), justify="left" if left else "right", no_wrap=True)
    for row in table.to_dict("records"):
        shown.add_row(*(_cell(row[name]) for name in (*names, *told)))
    OUT.print(Text(f"{of} over {', '.join(axis_name(name) for name in names)}"), soft_wrap=True)
    _print_table(shown)
    if not table["guaranteed"].all():
        OUT.print(Text(_WARNING), soft_wrap=True)


def print_record(record: Mapping[str, Any], title: str) -> None:
    """Print what ``theory bound --out`` has written.

    Args:
        record: The content of its ``result.json``.
        title: What it is of.
    """
    from dspodfl.analysis.figures import NAMES

    OUT.print(Text(title), soft_wrap=True)
    algorithms: Mapping[str, Any] = record["algorithms"]
    if not record["guaranteed"]:
        OUT.print(Text(_WARNING), soft_wrap=True)
    names = [NAMES.get(name, name) for name in algorithms]
    head = _table("mixing and SGD", *names)
    for key, label in (("rho_tilde", "ρ̃, largest over iterations and seeds"), ("d_min", "d_min"), ("d_max", "d_max")):
        head.add_row(label, *(_cell(found[key]) for found in algorithms.values()))
    _print_table(head)
    for family in dict.fromkeys(family for found in algorithms.values() for family in found["families"]):
        told = {name: found["families"].get(family, {}) for name, found in algorithms.items()}
        theorems = ", ".join(dict.fromkeys(f["theorem"] for f in told.values() if f))
        table = _table(f"{family} ({theorems})", *names)
        for quantity in dict.fromkeys(key for f in told.values() for key in f.get("quantities", {})):
            table.add_row(quantity, *(_cell(f.get("quantities", {}).get(quantity)) for f in told.values()))
        table.add_section()
        for form, name in dict.fromkeys((c["form"], c["name"]) for f in told.values() for c in f.get("conditions", [])):
            cells = [_recorded(f.get("conditions", []), form, name) for f in told.values()]
            table.add_row(f"{form}: {name.removeprefix('printed ').removeprefix('corrected ')}", *cells)
        _print_table(table)


def _recorded(conditions: Sequence[Mapping[str, Any]], form: str, name: str) -> str:
    """A condition as it was recorded."""
    for found in conditions:
        if (found["form"], found["name"]) == (form, name):
            sign, word = ("<", "yes") if found["holds"] else ("≥", "NO")
            return f"{_cell(found['left'])} {sign} {_cell(found['right'])} {word}"
    return "–"


_WARNING = (
    "no guarantee: β, δ, ζ and σ are measured lower estimates, the true ones are at least as large; "
    "the bounds below say what the theorems would give if they were these"
)


def _load(config: Path, changes: list[str] | None, algorithms: str | None, seeds: int | None) -> Config:
    from dspodfl.config import load

    importable(config)
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    return load(config, changes or [], algorithms=names, seeds=seeds)


def _title(config: Config) -> str:
    model = getattr(config.model, "name", None) or getattr(config.model, "factory", "")
    return f"{config.data.name}, {model}, {config.clients.count} clients"


def _claim(out: Path | None, overwrite: bool) -> None:
    from dspodfl.study.store import claim

    if out is not None:
        claim(out, overwrite=overwrite, names=_FILES, kind="theory")


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values; what is missing or infinite is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return list(rows)


KINDS, FORMAT = ("theory bound", "theory sweep"), 1
"""Of result.json."""
_FILES = ("result.json", "table.csv", "curves.csv", "figure.png", "figure.svg")


def _write(
    folder: Path, kind: str, record: dict[str, Any], tables: dict[str, pd.DataFrame], figure: Figure | None
) -> None:
    from dspodfl.analysis.figures import picture
    from dspodfl.study.store import COMPLETE, Folder

    record = {"kind": kind, "format": FORMAT, **record}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Folder(folder, "theory").change(state=COMPLETE, only=True) as change:
            change.write("result.json", (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
            for name, table in tables.items():
                change.write(name, table.to_csv(index=False, float_format="%.10g").encode())
            for form in ("png", "svg"):
                if figure is not None:
                    change.write(f"figure.{form}", picture(figure, form))
    except OSError as error:
        raise DataError(f"{folder}: the result could not be written ({error})") from error


# --- what is printed --------------------------------------------------------------------------------------------

_MEANING = {
    "mu": ("μ", "strong convexity, least over clients"),
    "beta": ("β", "smoothness, largest over clients"),
    "zeta": ("ζ", "diversity ‖∇F − ∇F_i‖ ≤ δ + ζ‖θ − θ*‖"),
    "delta": ("δ", "its constant part, ‖∇F_i(θ*)‖"),
    "sigma": ("σ", "deviation of the minibatch noise"),
}


def _print(found: Appraisal, laid: Comparison | None) -> None:
    from dspodfl.analysis.figures import NAMES
    from dspodfl.theory.assess import advice

    known = found.knowledge
    config = found.config
    OUT.print(Text(f"{_title(config)}, {config.seeds} seed{'' if config.seeds == 1 else 's'} (worst of them)"))
    table = _table("", "value", "known as", "meaning")
    for name, (symbol, meaning) in _MEANING.items():
        if getattr(known, name) is not None:
            table.add_row(symbol, _cell(getattr(known, name)), known.source.get(name, ""), meaning)
    for zeta, delta in known.pairs:
        source = known.source["zeta_gradient"]
        table.add_row("ζ, δ", f"{_cell(zeta)}, {_cell(delta)}", source, "non-convex diversity ‖∇F_i‖ ≤ δ + ζ‖∇F‖")
    _print_table(table)
    if not known.guaranteed:
        OUT.print(Text(_WARNING), soft_wrap=True)
    cases = found.cases
    head = _table("mixing and SGD", *(NAMES.get(case.algorithm, case.algorithm) for case in cases))
    head.add_row("ρ̃, largest over iterations and seeds", *(_cell(case.sporadicity.rho_tilde) for case in cases))
    head.add_row("d_min", *(_cell(case.sporadicity.d_min) for case in cases))
    head.add_row("d_max", *(_cell(case.sporadicity.d_max) for case in cases))
    head.add_row("α" if config.train.learning_rate.kind == "constant" else "α(0)", *(_cell(found.alpha) for _ in cases))
    _print_table(head)
    for family in found.families:
        _print_family(family, [(case, case.statement(family)) for case in cases])
    for case in cases:
        for line in advice(found, case):
            OUT.print(Text(f"{NAMES.get(case.algorithm, case.algorithm)}: {line}"), soft_wrap=True)
    if laid is not None:
        _print_comparison(laid)


def _print_family(family: str, pairs: list[tuple[Case, Statement | None]]) -> None:
    from dspodfl.analysis.figures import NAMES

    told = [(case, s) for case, s in pairs if s is not None]
    theorems = ", ".join(dict.fromkeys(s.theorem for _, s in told))
    table = _table(f"{family} ({theorems})", *(NAMES.get(case.algorithm, case.algorithm) for case, _ in told))
    for name in dict.fromkeys(key for _, s in told for key in s.labelled):
        table.add_row(name, *(_cell(s.labelled.get(name, math.nan)) for _, s in told))
    table.add_section()
    conditions = dict.fromkeys((c.form, c.hypothesis.name) for _, s in told for c in s.conditions)
    for form, name in sorted(conditions, key=lambda pair: pair[0] != "printed"):
        cells = []
        for _, s in told:
            met = [c.hypothesis for c in s.conditions if (c.form, c.hypothesis.name) == (form, name)]
            cells.append(_condition(met[0]) if met else "–")
        plain = name.removeprefix("printed ").removeprefix("corrected ")
        table.add_row(f"{form}: {plain}", *cells)
    _print_table(table)


def _condition(found: Hypothesis) -> str:
    sign, word = ("<", "yes") if found.holds else ("≥", "NO")
    return f"{_cell(found.left)} {sign} {_cell(found.right)} {word}"


def _print_comparison(laid: Comparison) -> None:
    from dspodfl.analysis.figures import LABELS, NAMES

    table = _table("measured beside the exact recursion", "", "measured / bound, largest", "at the end", "iterations")
    for row in laid.verdicts.to_dict("records"):
        name = f"{NAMES.get(row['algorithm'], row['algorithm'])}: {LABELS[row['error']]}"
        table.add_row(name, row["word"], _cell(row["largest"]), _cell(row["last"]), str(row["points"]))
    _print_table(table)
    if laid.inside is not None:
        ball = "the ball that σ is a maximum over"
        stayed = f"models were inside {ball} at every evaluated iteration"
        OUT.print(Text(stayed if laid.inside else f"models left {ball}: give a larger --reach"))


def _table(first: str, *heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, no_wrap=True, justify="left" if head in ("known as", "meaning", "") else "right")
    return table


def _print_table(table: Table) -> None:
    """A table at its own width: in a window that is narrower its lines go on below, and no number is cut short."""
    wide = Measurement.get(OUT, OUT.options.update(max_width=10_000), table).maximum
    terminal.Console(OUT.stream, width=max(OUT.width, wide)).print(table)


def _cell(value: Any) -> str:
    """A number for a table: four digits, more beside 1, a dash where there is none."""
    if isinstance(value, str | bool):
        return str(value)
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) < 1e-14:
        return "0"
    return f"{value:.5g}" if 0.9 < value < 1.1 else f"{value:.4g}"
