"""The command ``dspodfl run``: a client of the session, in one process or as one rank of several."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from dspodfl.errors import DataError, InputError, LostRankError, OutOfMemoryError, user_code
from dspodfl.study import Progress, for_command, say, spent
from dspodfl.study.store import is_folder
from dspodfl.ui.cli.launch import check_ranks, launch
from dspodfl.ui.cli.options import Output
from dspodfl.ui.console.results import ERR, print_complete, print_places, print_result, resume_advice

if TYPE_CHECKING:
    from dspodfl.config import Config
    from dspodfl.errors import Interrupt
    from dspodfl.study import Result, Simulation


@dataclass(frozen=True)
class RunOptions:
    """The options of ``dspodfl run``."""

    config: Path | None = None
    changes: list[str] = field(default_factory=list)
    algorithms: list[str] | None = None
    seeds: int | None = None
    device: str = "auto"
    output: Output = field(default_factory=Output)
    resume: Path | None = None
    resolved: str | None = None
    """The configuration as TOML, once it was read and changed: ranks get it from their launcher."""

    @property
    def overrides(self) -> dict[str, Any]:
        """What is changed of the configuration."""
        return {"changes": self.changes, "algorithms": self.algorithms, "seeds": self.seeds}

    def load(self, default: Path | None = None) -> Config:
        """Read the configuration; ``default`` is the file of it where none is named."""
        from dspodfl.config import Config, load

        importable(self.config)
        if self.resolved is not None:
            return Config(**tomllib.loads(self.resolved))
        return load(self.config or default, **self.overrides)


def launch_run(options: RunOptions, ranks: int | None, max_restarts: int) -> int:
    """Run a study on several processes of this machine, once it is known that it can be read."""
    from dspodfl.config import dumps
    from dspodfl.study.store import begun

    count = check_ranks(ranks)
    if options.resume is None:
        config = options.load()
        output = replace(options.output, out=options.output.out or default_folder(options.config, config))
        options = replace(options, output=output, resolved=dumps(config.model_dump(exclude_unset=True)))
    try:
        return launch("run", options, count, max_restarts)
    except LostRankError as error:
        where = options.resume or options.output.out or Path()
        raise LostRankError(f"{error}; {resume_advice(where)}" if begun(where) else str(error)) from None


def run_command(options: RunOptions) -> None:
    """Run a study, or resume it; rank 0 of several shows and writes."""
    from dspodfl.errors import Interrupt, Interrupted

    first = os.environ.get("RANK", "0") == "0"
    show = first and options.output.prints
    with ExitStack() as ends:
        interrupt = ends.enter_context(Interrupt())
        progress = for_command(not show)
        try:
            with progress:
                progress.stage("setting up")
                ready = _set_up(options, ends, interrupt, progress)
        except Interrupted as error:
            raise _interrupted(error, f"before anything was measured{_as_it_was(options)}") from None
        if ready is None:
            return
        result, too_large = _execute(ready, interrupt, progress)
    simulation, folder = ready.simulation, ready.folder
    if not first:
        raise typer.Exit(getattr(interrupt.received, "code", 0) if simulation.stopped else 0)
    if options.output.json:
        say(json.dumps({"out": str(folder), **result.record()}, ensure_ascii=False))
    elif show:
        print_result(result)
        print_places(folder)
        ERR.print(Text(spent(result.summary["study"]["seconds"])), soft_wrap=True)
    if too_large:
        raise OutOfMemoryError(f"{too_large}; what was measured until then is in {folder}")
    if simulation.stopped and not simulation.complete:
        where = f"after iteration {result.summary['study']['interrupted_at']:,}"
        raise _interrupted(
            interrupt.received, f"{where}; what was measured so far is in {folder}; {resume_advice(folder)}"
        )


@dataclass(frozen=True, eq=False)
class _Ready:
    """A run whose next step is the first iteration."""

    simulation: Simulation
    folder: Path
    output: Output


def _set_up(options: RunOptions, ends: ExitStack, interrupt: Interrupt, progress: Progress) -> _Ready | None:
    """Do everything before the first iteration; None where nothing is left to do."""
    from dspodfl.engine.transport import torch_distributed as distributed
    from dspodfl.study import Simulation, agreed, open_folder
    from dspodfl.study.store import CONFIG, complete

    team, device = distributed.join(options.device)
    first, out = team.rank == 0, options.output.out
    if options.resume is None and out is not None and distributed.restarts():
        options = _after_restart(options, out, team.broadcast(_folder_state(out, distributed.launch_id())))
        out = options.output.out
    resume, output = options.resume, options.output
    if resume is not None and is_folder(resume) and complete(resume):
        if first:
            _show_complete(options, resume, progress.mode != "off")
        return None
    stored: dict[str, Any] = output.stored | {"beside": ""}  # the folder of the configuration; its name is that of 0.1
    if resume is None:
        config = agreed(team, options.load)
        out = out or default_folder(options.config, config)
        stored["beside"] = str(user_code.folder_of(options.config))
        stored |= {"launch": distributed.launch_id()} if distributed.launched() else {}
        opened = open_folder(ends, team, out=out, overwrite=output.overwrite, options=stored)
    else:
        agreed(team, lambda: _without_out(options, resume))
        opened = open_folder(ends, team, resume=resume, options=stored)
        importable(Path(stored["beside"]) / CONFIG)
        config = agreed(team, lambda: _as_started(options, resume))
    team.set_timeout(config.scale.timeout)
    output = output.as_started(stored)
    record = output.record and first
    simulation = Simulation(config, device=device, record_events=record, team=team, progress=progress)
    stop = lambda: bool(interrupt.received)  # noqa: E731
    for note in simulation.open(opened.folder, stop, overwrite=output.overwrite, before=opened.before):
        if first:
            ERR.print(Text(note), soft_wrap=True)
    return _Ready(simulation, team.broadcast(opened.folder and opened.folder.folder), output)


def _as_started(options: RunOptions, folder: Path) -> Config:
    """The configuration of a run that is resumed, as it was started."""
    from dspodfl.study.store import CONFIG

    if options.config is None and not (folder / CONFIG).is_file():
        given = f"dspodfl run {CONFIG} --resume {folder}"
        raise DataError(f"{folder}: {CONFIG} is missing; name the one that the run began with: {given}")
    return options.load(folder / CONFIG)


def _folder_state(folder: Path, launch: str) -> str:
    """Return what a folder holds when ranks restart: "nothing", what this launch has "begun", or something "else"."""
    from dspodfl.study.store import Folder, begun

    if not begun(folder):
        return "nothing"
    with suppress(DataError, OSError):
        manifest = Folder(folder).manifest()
        if manifest is not None and manifest.about.get("options", {}).get("launch") == launch:
            return "begun"
    return "else"


def _after_restart(options: RunOptions, folder: Path, left: str) -> RunOptions:
    """Return the options of ranks that were restarted: to resume what they had begun, or to begin.

    A run that was there before is overwritten only with ``--overwrite``.
    """
    if left == "begun":
        return replace(options, resume=folder, resolved=None, output=replace(options.output, out=None, overwrite=False))
    return replace(options, output=replace(options.output, overwrite=True)) if left == "nothing" else options


def _show_complete(options: RunOptions, folder: Path, show: bool) -> None:
    """Report that nothing is left to do, once it is known that the run is the requested one, and complete."""
    from dspodfl.study import Result
    from dspodfl.study.store import CONFIG, Folder, compare_complete

    _without_out(options, folder)
    result = Result.load(folder)
    if options.config is not None or any(options.overrides.values()):
        compare_complete(folder, options.load(folder / CONFIG))
    files = Folder(folder)
    if files.left_over:
        with suppress(OSError), files.locked(0):
            files.clean()
    print_complete(result, folder, show, options.output.json)


def _as_it_was(options: RunOptions) -> str:
    """What a run that was interrupted before anything was measured has left."""
    from dspodfl.study.store import CLAIMED, Folder, begun, recognised_manifest

    where = options.resume or options.output.out
    if where is None or not begun(where):
        return "; nothing was written"
    manifest = Folder(where).manifest() if recognised_manifest(where) else None
    if options.resume is None and manifest is not None and manifest.state == CLAIMED:  # it is removed
        return "; nothing was written"
    advice = resume_advice(where) if options.resume is not None or not options.output.overwrite else ""
    return f"; {where} is as it was{f'; {advice}' if advice else ''}"


def _without_out(options: RunOptions, folder: Path) -> None:
    if options.output.out is not None or options.output.overwrite:
        allowed = "given without --out and --overwrite: a run that is resumed stays in its folder"
        raise InputError("--resume", str(folder), allowed)


def _execute(ready: _Ready, interrupt: Interrupt, progress: Progress) -> tuple[Result, OutOfMemoryError | None]:
    """Run from the first iteration to the result."""
    from dspodfl.errors import Interrupted

    simulation, folder, team = ready.simulation, ready.folder, ready.simulation.team
    too_large, doing = None, f"immediately; {resume_advice(folder)}"
    try:
        with interrupt.deferred():
            try:
                with progress:
                    for _ in simulation:
                        pass
            except OutOfMemoryError as error:
                if not simulation.measured or team.ranks > 1:
                    raise
                too_large = error
            if simulation.stopped and not team.broadcast(simulation.measured):
                raise _interrupted(interrupt.received, "before anything was measured; nothing was written")
            doing = f"while writing {folder}; {resume_advice(folder)}"
            result = simulation.finish(models=ready.output.models)
            team.leave()
    except Interrupted as error:
        if not simulation.begun:
            doing = "before anything was measured; nothing was written"
        raise _interrupted(error, doing) from None
    except LostRankError as error:
        raise LostRankError(f"{error}; {resume_advice(folder)}") from error
    return result, too_large


def _interrupted(error: KeyboardInterrupt | None, when: str) -> typer.Exit:
    if os.environ.get("RANK", "0") == "0":
        ERR.print(Text(f"interrupted {when}"), soft_wrap=True)
    return typer.Exit(getattr(error, "code", 130))


def importable(config: Path | None) -> None:
    """Let factories and schedules of the user be in the folder of the configuration or in the working directory."""
    user_code.search(user_code.folder_of(config), Path.cwd())


def default_folder(config: Path | None, resolved: Any) -> Path:
    """Return the folder of a run where ``--out`` is not given."""
    name = config.stem if config else "default"
    digest = hashlib.sha256(resolved.model_dump_json().encode()).hexdigest()[:7]
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{digest}"
