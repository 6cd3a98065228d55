"""Commands about the theory: bound, sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dspodfl.study import for_command, say
from dspodfl.ui.cli.run import importable
from dspodfl.ui.console.results import ERR, OUT
from dspodfl.ui.console.theory import print_assessment, print_sweep, title

if TYPE_CHECKING:
    import pandas as pd

    from dspodfl.config import Config


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
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.")]
Epsilon = Annotated[
    float | None,
    typer.Option(
        metavar="E",
        help="Report the iterations to this error; default: twice the gap, or 1% of the initial error.",
    ),
]
Reach = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help="Linear regression: take σ as the maximum over ‖θ − θ*‖ ≤ R; default: the initial distance.",
    ),
]
Points = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Other models: number of points of the trajectory at which constants are measured.",
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
    from dspodfl.theory.assess import assess, claim_folder, matching, predicted, write_folder
    from dspodfl.theory.assess import compare as compare_with

    resolved = _load(config, changes, algorithms, seeds)
    if out is not None:
        claim_folder(out, overwrite=overwrite)
    result = None if compare is None else Result.load(compare)
    for note in result.notes if result is not None else ():
        ERR.print(Text(note), soft_wrap=True)
    if result is not None:
        resolved = matching(resolved, result, str(compare))
    with for_command(quiet=as_json) as progress:
        found = assess(resolved, epsilon, reach, points, on_progress=progress.stage)
    compared = None if result is None else compare_with(found, result, str(compare))
    record = found.record()
    if compared is not None:
        checks = compared.checks.rename(columns={"status": "word"})
        record |= {"compared": _records(checks), "inside": compared.inside}
    if out is not None:
        from dspodfl.analysis.figures import bound_trajectory

        curves = predicted(found) if compared is None else compared.table
        figure = bound_trajectory(curves, title(resolved)) if len(curves) else None
        write_folder(out, "theory bound", record, {"table.csv": found.table(), "curves.csv": curves}, figure)
    if as_json:
        say(json.dumps(record, ensure_ascii=False))
        return
    print_assessment(found, compared)
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
    from dspodfl.theory.assess import BOUND_PANELS, claim_folder, over_cells, write_folder

    base = _load(config, changes, algorithms, seeds)
    axes = [Axis.parse(text) for text in over]
    grid = cells(base.model_dump(exclude_unset=True), axes, METRICS)
    if out is not None:
        claim_folder(out, overwrite=overwrite)
    with for_command(quiet=as_json) as progress:
        table = over_cells(grid, epsilon, reach, points, progress.stage)
    names = [axis.name for axis in axes]
    record = {"axes": names, "rows": _records(table)}
    if out is not None:
        from dspodfl.analysis.figures import bound_sweep

        figure = bound_sweep(table, names, BOUND_PANELS, title(base))
        write_folder(out, "theory sweep", record, {"table.csv": table}, figure)
    if as_json:
        say(json.dumps(record, ensure_ascii=False))
        return
    print_sweep(table, names, config.stem)
    if out is not None:
        OUT.print(Text(f"picture: {out / 'figure.png'}\ntables:  {out}"), soft_wrap=True)


def _load(config: Path, changes: list[str] | None, algorithms: str | None, seeds: int | None) -> Config:
    from dspodfl.config import load

    importable(config)
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    return load(config, changes or [], algorithms=names, seeds=seeds)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values; what is missing or infinite is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return list(rows)
