"""One run of a study from the command line: set up, carried out, ended; alone, or as one rank of several."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from dspodfl.errors import DataError, InputError, LostRankError, OutOfMemoryError, user_code
from dspodfl.study import Progress, for_command, say, spent
from dspodfl.study.store import is_folder
from dspodfl.ui.console.results import ERR, how_to_resume, print_complete, print_places, print_result

if TYPE_CHECKING:
    from dspodfl.config import Config
    from dspodfl.engine import Team
    from dspodfl.errors import Interrupt
    from dspodfl.study import Result, Simulation
    from dspodfl.study.store import RunFolder, Unfinished


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for."""

    config: Path | None
    changes: list[str]
    algorithms: list[str] | None
    seeds: int | None
    device: str
    out: Path | None
    overwrite: bool
    models: bool
    record: bool
    resume: Path | None
    json: bool
    quiet: bool

    @property
    def how(self) -> dict[str, Any]:
        """What is changed of the configuration."""
        return {"changes": self.changes, "algorithms": self.algorithms, "seeds": self.seeds}

    def words(self) -> list[str]:
        """The same, as arguments."""
        words = ["run", *([str(self.config)] if self.config else []), "--device", self.device]
        words += [word for change in self.changes for word in ("--set", change)]
        words += ["--algorithms", ",".join(self.algorithms)] if self.algorithms is not None else []
        words += ["--seeds", str(self.seeds)] if self.seeds is not None else []
        words += ["--out", str(self.out)] if self.out is not None else []
        words += ["--resume", str(self.resume)] if self.resume is not None else []
        flags = {"overwrite": self.overwrite, "save-models": self.models, "record-events": self.record}
        flags |= {"json": self.json, "quiet": self.quiet}
        return words + [f"--{name}" for name, wanted in flags.items() if wanted]


def on_ranks(asked: RunOptions, ranks: int | None, max_restarts: int) -> int:
    """Launch the same command on several processes of this machine, once it is known that it can be run."""
    from dspodfl.config import load
    from dspodfl.engine.transport import torch_distributed as distributed
    from dspodfl.study.store import begun, claim_run

    if distributed.launched():
        raise InputError("ranks", ranks, "left out: a launcher has started this process as one of several already")
    if ranks is None or ranks < 1:
        also = " where --max-restarts is given" if ranks is None else ""
        raise InputError("ranks", ranks, f"an integer of at least 1{also}")
    if max_restarts < 0:
        raise InputError("max-restarts", max_restarts, "0 or more")
    if asked.resume is None:
        importable(asked.config)
        asked = replace(asked, out=asked.out or default_folder(asked.config, load(asked.config, **asked.how)))
        assert asked.out is not None
        claim_run(asked.out, {"models": asked.models, "record": asked.record}, overwrite=asked.overwrite)
    try:
        return distributed.launch(ranks, asked.words(), max_restarts=max_restarts)
    except LostRankError as error:
        where = asked.resume or asked.out or Path()
        raise LostRankError(f"{error}; {how_to_resume(where)}" if begun(where) else str(error)) from None


@dataclass(frozen=True, eq=False)
class _Session:
    """A study that is ready to go."""

    team: Team
    simulation: Simulation
    run_folder: RunFolder | None
    progress: Progress
    folder: Path
    models: bool


def run_command(asked: RunOptions) -> None:
    """Run a study, or resume it; rank 0 of several shows and writes."""
    from dspodfl.errors import Interrupt, Interrupted

    first = os.environ.get("RANK", "0") == "0"
    show = first and not (asked.quiet or asked.json)
    with ExitStack() as ends:
        interrupt = ends.enter_context(Interrupt())
        progress = for_command(not show)
        try:
            with progress:
                progress.stage("setting up")
                session = _set_up(asked, ends, interrupt, first, progress)
        except Interrupted as error:
            raise _interrupted(error, f"before anything was measured{_as_it_was(asked)}") from None
        if session is None:
            return
        result, too_large = _go(session, interrupt)
    simulation, folder = session.simulation, session.folder
    if not first:
        raise typer.Exit(getattr(interrupt.heard, "code", 0) if simulation.stopped else 0)
    if asked.json:
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
            interrupt.heard, f"{where}; what was measured so far is in {folder}; {how_to_resume(folder)}"
        )


def _set_up(
    asked: RunOptions, ends: ExitStack, interrupt: Interrupt, first: bool, progress: Progress
) -> _Session | None:
    """Everything before the first iteration; None where nothing is left to do."""
    from dspodfl.engine.transport import torch_distributed as distributed
    from dspodfl.study import Simulation, agreed
    from dspodfl.study.store import complete

    team, device = distributed.join(asked.device)
    if asked.resume is None and asked.out is not None and distributed.restarts():
        asked = _again(asked, asked.out, team.share(_left_there(asked.out, distributed.launch_id())))
    if asked.resume is not None and is_folder(asked.resume) and complete(asked.resume):
        if first:
            _show_complete(asked, asked.resume, progress.mode != "off")
        return None
    options = {"models": asked.models, "record": asked.record, "beside": ""}
    if asked.resume is None:
        resolved, run_folder, before = agreed(team, lambda: _new(asked, options, ends, first))
    else:  # the first rank finishes what a killed process had begun there; then all read it
        opened = agreed(team, lambda: _opened(asked, options, ends) if first else (None, None))
        resolved, run_folder, before = agreed(team, lambda: _unfinished(asked, options, *opened))
    team.patience(resolved.scale.timeout)
    simulation = Simulation(
        resolved,
        device=device,
        record_events=bool(options["record"]) and first,
        team=team,
        progress=progress,
    )
    stop = lambda: bool(interrupt.heard)  # noqa: E731
    for note in simulation.keep(run_folder, stop, overwrite=asked.overwrite, before=before):
        if first:
            ERR.print(Text(note), soft_wrap=True)
    folder = team.share(run_folder and run_folder.folder)
    return _Session(team, simulation, run_folder, progress, folder, bool(options["models"]))


def _left_there(folder: Path, launch: str) -> str:
    """What a folder holds when ranks start again: "nothing", what this launch has "begun", or something "else"."""
    from dspodfl.study.store import Folder, begun

    if not begun(folder):
        return "nothing"
    with suppress(DataError, OSError):
        manifest = Folder(folder).manifest()
        if manifest is not None and manifest.about.get("options", {}).get("launch") == launch:
            return "begun"
    return "else"


def _again(asked: RunOptions, folder: Path, left: str) -> RunOptions:
    """What is asked of ranks that were started again: to go on with what they had begun, or to begin.

    A run that was there before is overwritten only where that was asked for.
    """
    if left == "begun":
        return replace(asked, resume=folder, out=None, overwrite=False)
    return replace(asked, overwrite=True) if left == "nothing" else asked


def _show_complete(asked: RunOptions, folder: Path, show: bool) -> None:
    """Nothing is left to do: say so, once it is known that this is the run which is asked for, and whole."""
    from dspodfl.config import load
    from dspodfl.study import Result
    from dspodfl.study.store import CONFIG, Folder, compare_complete

    _without_out(asked, folder)
    result = Result.load(folder)
    if asked.config is not None or any(asked.how.values()):
        importable(asked.config)
        compare_complete(folder, load(asked.config or folder / CONFIG, **asked.how))
    files = Folder(folder)
    if files.left_over:
        with suppress(OSError), files.locked(0):
            files.clean()
    print_complete(result, folder, show, asked.json)


def _as_it_was(asked: RunOptions) -> str:
    """What a run that was interrupted before anything was measured has left."""
    from dspodfl.study.store import CLAIMED, Folder, begun, recognised_manifest

    where = asked.resume or asked.out
    if where is None or not begun(where):
        return "; nothing was written"
    manifest = Folder(where).manifest() if recognised_manifest(where) else None
    if asked.resume is None and manifest is not None and manifest.state == CLAIMED:  # it is removed
        return "; nothing was written"
    how = how_to_resume(where) if asked.resume is not None or not asked.overwrite else ""
    return f"; {where} is as it was{f'; {how}' if how else ''}"


def _without_out(asked: RunOptions, folder: Path) -> None:
    if asked.out is not None or asked.overwrite:
        allowed = "given without --out and --overwrite: a run that is resumed stays in its folder"
        raise InputError("--resume", str(folder), allowed)


def _go(session: _Session, interrupt: Interrupt) -> tuple[Result, OutOfMemoryError | None]:
    """From the first iteration to the result."""
    from dspodfl.errors import Interrupted

    simulation, folder = session.simulation, session.folder
    too_large, doing = None, f"at once; {how_to_resume(folder)}"
    try:
        with interrupt.patiently():
            try:
                with session.progress:
                    for _ in simulation:
                        pass
            except OutOfMemoryError as error:
                if not simulation.measured or session.team.ranks > 1:
                    raise
                too_large = error
            if simulation.stopped and not session.team.share(simulation.measured):
                raise _interrupted(interrupt.heard, "before anything was measured; nothing was written")
            doing = f"while writing {folder}; {how_to_resume(folder)}"
            result = simulation.result(models=session.models)
            if session.run_folder:
                with simulation.writing():
                    session.run_folder.finish(result, models=session.models)
            session.team.leave()
    except Interrupted as error:
        if session.run_folder and not session.run_folder.begun:
            doing = "before anything was measured; nothing was written"
        raise _interrupted(error, doing) from None
    except LostRankError as error:
        raise LostRankError(f"{error}; {how_to_resume(folder)}") from error
    return result, too_large


Settled = tuple["Config", "RunFolder | None", "Unfinished | None"]


def _new(asked: RunOptions, options: dict[str, Any], ends: ExitStack, first: bool) -> Settled:
    """The configuration and, on the first rank, the run_folder of a new run."""
    from dspodfl.config import load
    from dspodfl.engine.transport import torch_distributed as distributed
    from dspodfl.study.store import RunFolder, claim_run

    importable(asked.config)
    resolved = load(asked.config, **asked.how)
    if not first:
        return resolved, None, None
    folder = asked.out or default_folder(asked.config, resolved)
    claim_run(folder, options, overwrite=asked.overwrite)
    options["beside"] = str(user_code.folder_of(asked.config))
    if distributed.launched():
        options["launch"] = distributed.launch_id()
    return resolved, ends.enter_context(RunFolder(folder, options)), None


def _opened(asked: RunOptions, options: dict[str, Any], ends: ExitStack) -> tuple[RunFolder, Unfinished]:
    """The run_folder of a run that is resumed, and what its folder holds."""
    from dspodfl.study.store import RunFolder, Unfinished

    folder = asked.resume or Path()
    _without_out(asked, folder)
    run_folder = ends.enter_context(RunFolder(folder, options))
    run_folder.reopen()
    before = Unfinished.read(folder)
    run_folder.recover()
    return run_folder, before


def _unfinished(
    asked: RunOptions, options: dict[str, Any], run_folder: RunFolder | None, before: Unfinished | None
) -> tuple[Config, RunFolder | None, Unfinished]:
    """The configuration of a run that is resumed, as it was started."""
    from dspodfl.config import load
    from dspodfl.study.store import CONFIG, Unfinished

    folder = asked.resume or Path()
    before = before or Unfinished.read(folder)
    options |= {key: value for key, value in before.options.items() if value}
    importable(asked.config)
    importable(Path(options["beside"]) / CONFIG)
    if asked.config is None and not (folder / CONFIG).is_file():
        given = f"dspodfl run {CONFIG} --resume {folder}"
        raise DataError(f"{folder}: {CONFIG} is missing; name the one that the run began with: {given}")
    return load(asked.config or folder / CONFIG, **asked.how), run_folder, before


def _interrupted(error: KeyboardInterrupt | None, when: str) -> typer.Exit:
    if os.environ.get("RANK", "0") == "0":
        ERR.print(Text(f"interrupted {when}"), soft_wrap=True)
    return typer.Exit(getattr(error, "code", 130))


def importable(config: Path | None) -> None:
    """Let factories and schedules of the user be in the folder of the configuration or in the working directory."""
    user_code.search(user_code.folder_of(config), Path.cwd())


def default_folder(config: Path | None, resolved: Any) -> Path:
    """Where a run is written that was not told where."""
    name = config.stem if config else "default"
    digest = hashlib.sha256(resolved.model_dump_json().encode()).hexdigest()[:7]
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{digest}"
