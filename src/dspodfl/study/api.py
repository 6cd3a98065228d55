"""Run a configuration, in Python: ``result = run(Config(...))``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.algorithms import Algorithm, Schedule
from dspodfl.config import Config, as_config
from dspodfl.engine import LocalTransport
from dspodfl.errors import InputError, Interrupt
from dspodfl.study.arguments import check_options
from dspodfl.study.brought import Brought
from dspodfl.study.progress import for_python
from dspodfl.study.result import Result
from dspodfl.study.session import Update, open_folder
from dspodfl.study.simulation import Simulation
from dspodfl.study.store.resume import compare_complete, complete, config_of

Callback = Callable[[Update], object]


def run(  # noqa: PLR0913
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: Any = None,
    data: Any = None,
    graph: Any = None,
    schedules: Mapping[str, Schedule] | None = None,
    algorithms: Sequence[Algorithm | Schedule | str | Mapping[str, Any]] | None = None,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    record_events: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a study and return its result.

    Args:
        config: a `Config`, the path of a TOML file, or a dictionary of tables; the paper's default setting if None.
        model: an nn.Module, or a function that makes one.
        data: a `Dataset`, a `Federation`, arrays ``(x, y)`` or ``(x_train, y_train, x_test, y_test)``, datasets
            ``(train, test)``, a dictionary of splits, or a list with the ``(x, y)`` of each client (docs/python.md).
        graph: a NetworkX graph, a list of links ``[(0, 1), (1, 2)]``, or an adjacency matrix.
        schedules: custom algorithms by name, run next to those that the configuration names (alone, where it names
            none).
        algorithms: what is compared, instead of what the configuration names: names, tables of ``name`` or ``schedule``
            and ``rule``, `Algorithm` values, and schedules, which are labelled by their names.
        device: auto, cpu or cuda.
        callbacks: called with each evaluation (`Update`); one that returns True ends the study there.
        record_events: whether the result holds what fired, for replay.
        out: a folder that the run is written to while it runs, and its result at the end.
        overwrite: whether a result that is already there is replaced.
        resume: the folder of a run to resume; everything that was given from Python is given again.
        progress: whether to show progress; None shows a bar on a terminal and in a notebook, True log lines elsewhere.

    Returns:
        The result, also where a callback has ended the study.

    Raises:
        ConfigError, InputError, DataError: something that was given cannot be used; the message says what is allowed.

    >>> result = run(Config(seeds=1, algorithms=["dspodfl"], train={"iterations": 20}))
    >>> result.metrics["iteration"].tolist()
    [0, 20]
    """
    check_options(callbacks, out, resume, progress, record_events=record_events, overwrite=overwrite)
    config, show = None if config is None else as_config(config), for_python(progress)
    brought: dict[str, Any] = {"model": model, "data": data, "graph": graph, "schedules": schedules, "device": device}
    brought |= {"algorithms": algorithms, "progress": show}
    if out is None and resume is None:
        with show:
            simulation = Simulation(config, record_events=record_events, **brought)
            _drive(simulation, callbacks)
            return simulation.result()
    if out is not None and resume is not None:
        raise InputError("out", str(out), "left out: a run that is resumed stays in its folder")
    if resume is not None and complete(Path(resume)):
        result = Result.load(resume)
        if config is not None:
            given = [name for name in ("model", "data", "graph") if brought[name] is not None]
            named = Brought.of(config, algorithms, schedules)
            compare_complete(Path(resume), named.named, given, named.algorithms)
        return result
    options = {"models": True, "record": record_events}
    where = {"out": None if out is None else Path(out), "resume": None if resume is None else Path(resume)}
    with show, Interrupt() as interrupt, ExitStack() as ends:
        opened = open_folder(ends, LocalTransport(), **where, overwrite=overwrite, options=options)
        if config is None and resume is not None:
            config = config_of(Path(resume), Brought.of(Config(), algorithms, schedules).algorithms)
        simulation = Simulation(config, record_events=bool(options["record"]), **brought)
        stop = lambda: bool(interrupt.received)  # noqa: E731
        for note in simulation.open(opened.folder, stop, overwrite=overwrite, before=opened.before):
            warnings.warn(note, stacklevel=2)
        with interrupt.deferred():
            _drive(simulation, callbacks)
            if interrupt.received and not simulation.measured:
                raise interrupt.received
            result = simulation.finish()
        if interrupt.received and not simulation.complete:
            raise interrupt.received
        return result


def _drive(simulation: Simulation, callbacks: Sequence[Callback]) -> None:
    """Run a study until it ends, or a callback ends it."""
    for update in simulation:
        answers = [callback(update) for callback in callbacks]
        if any(isinstance(answer, bool | np.bool_) and answer for answer in answers):
            simulation.save_checkpoint()
            break
