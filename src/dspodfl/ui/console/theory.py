"""What the theory gives, as text in a terminal: constants, quantities and conditions, and tables of sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dspodfl.study import terminal
from dspodfl.ui.console.results import OUT

if TYPE_CHECKING:
    import pandas as pd

    from dspodfl.config import Config
    from dspodfl.theory.assess import Assessment, Comparison, ProblemConstants

_CONSTANTS = {
    "mu": ("μ", "strong convexity, least over clients"),
    "beta": ("β", "smoothness, largest over clients"),
    "zeta": ("ζ", "diversity ‖∇F − ∇F_i‖ ≤ δ + ζ‖θ − θ*‖"),
    "delta": ("δ", "its constant part, ‖∇F_i(θ*)‖"),
    "sigma": ("σ", "deviation of the minibatch noise"),
}
"""The constants of a problem: their symbols and what they mean."""
_WARNING = (
    "no guarantee: β, δ, ζ and σ are measured lower estimates, the true ones are at least as large; "
    "the bounds below say what the theorems would give if they were these"
)


def title(config: Config) -> str:
    """Name a study by its data, its model and its clients."""
    model = getattr(config.model, "name", None) or getattr(config.model, "factory", "")
    return f"{config.data.name}, {model}, {config.clients.count} clients"


def print_assessment(found: Assessment, compared: Comparison | None) -> None:
    """Print what the theorems give for a configuration.

    Args:
        found: The assessment.
        compared: Its comparison with a measured run, if there is one.
    """
    from dspodfl.theory.assess import advice

    config = found.config
    OUT.print(Text(f"{title(config)}, {config.seeds} seed{'' if config.seeds == 1 else 's'} (worst of them)"))
    _print_constants(found.constants)
    if not found.constants.guaranteed:
        OUT.print(Text(_WARNING), soft_wrap=True)
    algorithms: Mapping[str, Any] = found.record()["algorithms"]
    rate = "α" if config.train.learning_rate.kind == "constant" else "α(0)"
    _print_sporadicity(algorithms, {rate: found.alpha})
    for family in found.families:
        results = {name: one["families"].get(family) for name, one in algorithms.items()}
        _print_family(family, {name: one for name, one in results.items() if one is not None}, printed_first=True)
    for algorithm in found.algorithms:
        for line in advice(found, algorithm):
            OUT.print(Text(f"{_name(algorithm.name)}: {line}"), soft_wrap=True)
    if compared is not None:
        _print_comparison(compared)


def print_record(record: Mapping[str, Any], heading: str) -> None:
    """Print what ``theory bound --out`` has written.

    Args:
        record: The content of its ``result.json``.
        heading: The first line.
    """
    OUT.print(Text(heading), soft_wrap=True)
    algorithms: Mapping[str, Any] = record["algorithms"]
    if not record["guaranteed"]:
        OUT.print(Text(_WARNING), soft_wrap=True)
    _print_sporadicity(algorithms)
    for family in dict.fromkeys(family for one in algorithms.values() for family in one["families"]):
        results = {name: one["families"].get(family, {}) for name, one in algorithms.items()}
        _print_family(family, results, printed_first=False)


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
    columns = [name for name in BOUND_COLUMNS if table[name].notna().any() and not (convex and name == "mean_gradient")]
    for name in (*names, *columns):
        left = name in (*names, "algorithm")
        head = axis_head(name) if name in names else BOUND_COLUMNS[name]
        shown.add_column(Text(head), justify="left" if left else "right", no_wrap=True)
    for row in table.to_dict("records"):
        shown.add_row(*(_cell(row[name]) for name in (*names, *columns)))
    OUT.print(Text(f"{of} over {', '.join(axis_name(name) for name in names)}"), soft_wrap=True)
    _print_table(shown)
    if not table["guaranteed"].all():
        OUT.print(Text(_WARNING), soft_wrap=True)


def _name(algorithm: str) -> str:
    from dspodfl.analysis.figures import NAMES

    return NAMES.get(algorithm, algorithm)


def _print_constants(constants: ProblemConstants) -> None:
    table = _table("", "value", "known as", "meaning")
    for name, (symbol, meaning) in _CONSTANTS.items():
        if getattr(constants, name) is not None:
            table.add_row(symbol, _cell(getattr(constants, name)), constants.source.get(name, ""), meaning)
    for zeta, delta in constants.pairs:
        source = constants.source["zeta_gradient"]
        table.add_row("ζ, δ", f"{_cell(zeta)}, {_cell(delta)}", source, "non-convex diversity ‖∇F_i‖ ≤ δ + ζ‖∇F‖")
    _print_table(table)


def _print_sporadicity(algorithms: Mapping[str, Any], further: Mapping[str, float] | None = None) -> None:
    """ρ̃, d_min and d_max of each algorithm, and further numbers that all of them share, by label."""
    from dspodfl.theory.assess import QUANTITIES

    table = _table("mixing and SGD", *map(_name, algorithms))
    for key in ("rho_tilde", "d_min", "d_max"):
        table.add_row(QUANTITIES[key].label, *(_cell(one[key]) for one in algorithms.values()))
    for label, value in (further or {}).items():
        table.add_row(label, *(_cell(value) for _ in algorithms))
    _print_table(table)


def _print_family(family: str, results: Mapping[str, Mapping[str, Any]], *, printed_first: bool) -> None:
    """Print quantities and conditions of a family, a column for each algorithm; {} where it does not apply to one.

    Conditions are listed as they are recorded, algorithm by algorithm; or all that the paper prints come first.
    """
    theorems = ", ".join(_unique(found["theorem"] for found in results.values() if found))
    table = _table(f"{family} ({theorems})", *map(_name, results))
    quantities = [found.get("quantities", {}) for found in results.values()]
    for label in _unique(label for some in quantities for label in some):
        table.add_row(label, *(_cell(some.get(label)) for some in quantities))
    table.add_section()
    conditions = [{(c["form"], c["name"]): c for c in found.get("conditions", [])} for found in results.values()]
    keys = _unique(key for some in conditions for key in some)
    for form, name in sorted(keys, key=lambda key: key[0] != "printed") if printed_first else keys:
        plain = name.removeprefix("printed ").removeprefix("corrected ")
        table.add_row(f"{form}: {plain}", *(_condition(some.get((form, name))) for some in conditions))
    _print_table(table)


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _condition(found: Mapping[str, Any] | None) -> str:
    """A condition as it is recorded, with its numbers."""
    if found is None:
        return "–"
    sign, answer = ("<", "yes") if found["holds"] else ("≥", "NO")
    return f"{_cell(found['left'])} {sign} {_cell(found['right'])} {answer}"


def _print_comparison(compared: Comparison) -> None:
    from dspodfl.analysis.figures import LABELS

    table = _table("measured beside the exact recursion", "", "measured / bound, largest", "at the end", "iterations")
    for row in compared.checks.to_dict("records"):
        name = f"{_name(row['algorithm'])}: {LABELS[row['error']]}"
        table.add_row(name, row["status"], _cell(row["largest"]), _cell(row["last"]), str(row["points"]))
    _print_table(table)
    if compared.inside is not None:
        ball = "the ball that σ is a maximum over"
        stayed = f"models were inside {ball} at every evaluated iteration"
        OUT.print(Text(stayed if compared.inside else f"models left {ball}: give a larger --reach"))


def _table(first: str, *heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, no_wrap=True, justify="left" if head in ("known as", "meaning", "") else "right")
    return table


def _print_table(table: Table) -> None:
    """Print a table at its own width: in a narrower window its lines are wrapped, and no number is cut short."""
    wide = Measurement.get(OUT, OUT.options.update(max_width=10_000), table).maximum
    terminal.Console(OUT.stream, width=max(OUT.width, wide)).print(table)


def _cell(value: Any) -> str:
    """A number for a table: four digits, more next to 1, a dash where there is none."""
    if isinstance(value, str | bool):
        return str(value)
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) < 1e-14:
        return "0"
    return f"{value:.5g}" if 0.9 < value < 1.1 else f"{value:.4g}"
