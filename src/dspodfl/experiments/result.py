"""The outcome of a grid of studies: rows, aggregates, a figure, claim checks; written to a folder and read back."""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from dspodfl.analysis import aggregates as aggregation
from dspodfl.analysis import complete, formatting, from_config
from dspodfl.config import Cell, dumps
from dspodfl.errors import DataError, bounded
from dspodfl.experiments.claims import ClaimCheck, Status, check_claims, overall, with_printed
from dspodfl.experiments.definition import Experiment, named
from dspodfl.experiments.evidence import Evidence
from dspodfl.experiments.tuning import tuned
from dspodfl.study import parquet, read_parquet
from dspodfl.study.store import COMPLETE, Folder, check_outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULT = "result.json"
"""The file of an experiment's result."""
FORMAT = 1
"""Of result.json."""
KINDS = ("curves", "sweep", "accuracy_table", "delay_table", "tuned")
_THEORY = ({"guaranteed"}, {"axes", "rows"})
"""Keys of the result.json of a bound, and of a sweep of bounds."""
_T = TypeVar("_T")


@dataclass(eq=False)
class ExperimentResult:
    """A figure or table of ours: what was measured, and whether the claims hold.

    Attributes:
        name: The name of the experiment, or of the sweep.
        title: One line.
        kind: ``curves``, ``sweep``, ``accuracy_table``, ``delay_table`` or ``tuned``.
        axes: The names of what is varied.
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        aggregates: What the figure or table shows of them.
        about: Provenance: device, versions, commit, seconds, cells and seeds.
        paper: The figure or table of the paper.
        claim: What the paper claims there.
        checks: The results of checking it.
        config: The configuration of the first cell, as TOML.
        explanation: Why not all that is claimed was found, where it was investigated.
    """

    name: str
    title: str
    kind: str
    axes: list[str]
    metrics: pd.DataFrame
    aggregates: pd.DataFrame
    about: dict[str, Any]
    paper: str = ""
    claim: str = ""
    checks: list[ClaimCheck] = field(default_factory=list)
    config: str = ""
    explanation: str = ""

    @staticmethod
    def of(
        experiment: Experiment,
        cells: Sequence[Cell],
        metrics: pd.DataFrame,
        about: Mapping[str, Any],
        folder: Path | None = None,
    ) -> ExperimentResult:
        """Aggregate rows and check claims as an experiment says.

        Args:
            experiment: How rows are aggregated, and what is checked.
            cells: The cells of the grid.
            metrics: Rows by point, algorithm, seed and evaluated iteration.
            about: Provenance.
            folder: The folder of the outcome; its baselines are looked for next to it.

        Returns:
            The outcome.
        """
        aggregates = read(experiment, metrics, cells, quick=bool(about.get("quick")))
        others = _others(experiment, folder, about)
        evidence = Evidence(metrics, aggregates, experiment.axes, experiment, others)
        full = not about.get("quick") and about.get("seeds") == experiment.seeds
        return ExperimentResult(
            experiment.name,
            experiment.title,
            experiment.kind,
            experiment.axes,
            metrics,
            aggregates,
            dict(about),
            experiment.paper,
            experiment.claim.strip(),
            check_claims(evidence) if len(metrics) else [],
            dumps(cells[0].config.model_dump()),
            experiment.explanation.strip() if full else "",
        )

    @property
    def status(self) -> Status:
        """One status for all claim checks."""
        return overall(self.checks)

    @property
    def heading(self) -> str:
        """The title with the keys of what is varied in words and with units, as figures and tables show it."""
        from dspodfl.analysis.figures import axis_name

        keys = sorted((axis for axis in self.axes if "." in axis), key=len, reverse=True)
        if not keys:
            return self.title
        pattern = rf"(?<![\w.])({'|'.join(map(re.escape, keys))})(?![\w.])"
        return re.sub(pattern, lambda found: axis_name(found[0]), self.title)

    def plot(self) -> Figure:
        """Draw the figure of its kind."""
        from dspodfl.analysis import figures as plots
        from dspodfl.analysis import median_run

        budget = from_config(tomllib.loads(self.config)) if self.config else None
        if self.kind == "curves":
            return plots.accuracy_vs_delay(self.metrics, self.title, budget)
        if self.kind == "delay_table":
            parts = median_run.parts(self.metrics, self.axes, self.aggregates)
            return plots.delays(self.aggregates, self.axes, self.title, parts)
        if self.kind == "accuracy_table":
            return plots.accuracies(self.aggregates, self.axes, self.title)
        if self.kind == "tuned":
            return plots.tuned(self.metrics, self.aggregates, self.axes, self.title)
        return plots.sweep(self.aggregates, self.axes, self.heading, budget)

    def save(self, folder: Path) -> Path:
        """Write rows, aggregates, figure and result.json; all files appear at once, or none does.

        Args:
            folder: The folder; it is made where it does not exist.

        Returns:
            The folder.
        """
        from dspodfl.analysis.figures import picture

        folder.mkdir(parents=True, exist_ok=True)
        figure = self.plot()
        record = {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "format": FORMAT,
            "axes": self.axes,
            "paper": self.paper,
            "says": self.claim,
            "why": self.explanation,
            "verdict": self.status if self.checks else None,
            "verdicts": [check.record() for check in self.checks],
            "about": self.about,
            "config": self.config,
        }
        with Folder(folder, "experiment").change(state=COMPLETE) as change:
            change.write("metrics.parquet", parquet(self.metrics))
            change.write("table.csv", formatting.to_csv(self.aggregates))
            change.write("figure.png", picture(figure, "png"))
            change.write("figure.svg", picture(figure, "svg"))
            text = json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n"
            change.write(RESULT, text.encode(errors="backslashreplace"))
        return folder

    @staticmethod
    def load(folder: Path) -> ExperimentResult:
        """Read an outcome from the folder that it was written to.

        Args:
            folder: The folder.

        Returns:
            The outcome.

        Raises:
            DataError: The folder holds none, or a file is missing, damaged or of a later format.
        """
        if not (folder / RESULT).is_file():
            raise DataError(f"{folder}: not the folder of a sweep or a reproduction (it has no {RESULT})")
        files = Folder(folder, "experiment")
        metrics = _loaded(files, "metrics.parquet", lambda content: complete(read_parquet(content)))
        aggregates = _loaded(files, "table.csv", _csv)

        def whole(content: bytes) -> ExperimentResult:
            record = bounded.parse_json(content)
            kind, later = record["kind"] if isinstance(record, dict) else None, record.pop("format", FORMAT)
            if kind not in KINDS or not isinstance(later, int) or later > FORMAT:
                raise ValueError(f"it is of kind {kind!r}, format {later!r}, not of a sweep or a reproduction")
            check_outcome(record, RESULT)
            record.pop("verdict")
            checks = [ClaimCheck.from_record(check) for check in record.pop("verdicts")]
            texts = {"claim": record.pop("says", ""), "explanation": record.pop("why", "")}
            return ExperimentResult(metrics=metrics, aggregates=aggregates, checks=checks, **texts, **record)

        return _loaded(files, RESULT, whole)


def is_theory(record: object) -> bool:
    """Tell whether a result.json is that of a bound or of a sweep of bounds.

    Args:
        record: Its content. Version 0.1 wrote no kind into it: what such a record holds decides.

    Returns:
        Whether it is.

    >>> is_theory({"kind": "theory bound"}), is_theory({"axes": [], "rows": []}), is_theory({"kind": "sweep"})
    (True, True, False)
    """
    if not isinstance(record, dict):
        return False
    kind = record.get("kind")
    return kind.startswith("theory") if isinstance(kind, str) else any(keys <= record.keys() for keys in _THEORY)


def is_outcome(folder: Path) -> bool:
    """Tell whether a folder holds a finished sweep or reproduction; its files are not verified.

    Args:
        folder: The folder.

    Returns:
        Whether it does.
    """
    try:
        manifest = Folder(folder, "experiment").manifest()
    except DataError:  # damaged: reading the other files reports it
        return (folder / RESULT).is_file()
    if manifest is not None:
        return manifest.kind == "experiment" and RESULT in manifest.names
    if not (folder / RESULT).is_file():
        return False
    try:
        return not is_theory(bounded.read_json(folder / RESULT))
    except DataError:
        return True


def _loaded(files: Folder, name: str, load: Callable[[bytes], _T]) -> _T:
    try:
        return load(files.read(name))
    except DataError as error:
        raise DataError(f"{files.path}: {str(error).removeprefix(f'{files.path}: ')}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{files.path}: {name} is damaged ({type(error).__name__}: {error})") from error


def _others(experiment: Experiment, folder: Path | None, about: Mapping[str, Any]) -> dict[str, Evidence]:
    """The experiments that one is compared with, as far as they are there, whole, and were run in the same way."""
    found: dict[str, Evidence] = {}
    if folder is None:
        return found
    for name in {check.baseline for check in experiment.check if check.baseline}:
        with suppress(DataError):
            other = ExperimentResult.load(folder.parent / name)
            if all(other.about.get(key) == about.get(key) for key in ("quick", "seeds")):
                found[name] = Evidence(other.metrics, other.aggregates, other.axes, named(name))
    return found


def _csv(content: bytes) -> pd.DataFrame:
    """A name may be None or NA; nothing at all is what is missing."""
    return pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""])


def read(
    experiment: Experiment, metrics: pd.DataFrame, cells: Sequence[Cell] = (), *, quick: bool = False
) -> pd.DataFrame:
    """Aggregate rows as an experiment says.

    Args:
        experiment: How they are read: at a delay, iterations or targets, or at the end of the runs.
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        cells: The cells of the grid, whose budgets are used; without them, that of the experiment's base.
        quick: Whether they were run with ``--quick``.

    Returns:
        The aggregates, with the paper's printed numbers in further columns; empty where there are no rows.
    """
    if not len(metrics):
        return pd.DataFrame()
    axes, how = experiment.axes, experiment.read
    if experiment.kind == "accuracy_table":
        table = aggregation.at_iterations(metrics, axes, how.iterations)
    elif experiment.kind == "delay_table":
        table = aggregation.to_targets(metrics, axes, how.targets)
    elif experiment.tune is not None:
        table = tuned(metrics, axes, experiment.tune, quick=quick)
    elif how.at_delay is not None:
        table = aggregation.at_delay(metrics, axes, how.at_delay)
    else:
        table = _at_budget(experiment, metrics, cells)
    return with_printed(table, experiment)


def _at_budget(experiment: Experiment, metrics: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """Read each run where it ended: at a delay that all points have in common, if they have one."""
    axes = experiment.axes
    budgets = {tuple(cell.point[axis] for axis in axes): from_config(cell.config.model_dump()) for cell in cells}
    if not budgets:
        base = from_config(experiment.base)
        budgets = {tuple(point): base for point, _, _ in aggregation.by_run(metrics, axes)}
    delays = {budget.value if budget is not None and budget.kind == "delay" else None for budget in budgets.values()}
    common = delays.pop() if len(delays) == 1 else None
    if common is not None:
        return aggregation.at_delay(metrics, axes, common)
    return aggregation.at_end(metrics, axes, budgets)
