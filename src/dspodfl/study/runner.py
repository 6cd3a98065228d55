"""Runs a study, wave by wave; a wave that does not fit into memory is started again in halves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import torch

from dspodfl.engine import choose_precision
from dspodfl.errors import OutOfMemoryError
from dspodfl.study.measurement import Hooks, Measurement, Start
from dspodfl.study.runner_wave import RunContext, run_wave
from dspodfl.study.study import Study
from dspodfl.study.waves import make_plan
from dspodfl.study.work_split import WorkSplit


def measure(
    study: Study,
    device: torch.device,
    hooks: Hooks | None = None,
    start: Start | None = None,
    work_split: WorkSplit | None = None,
) -> Iterator[Measurement]:
    """Run a study, or resume one, and yield what is measured when it is measured.

    A wave that runs out of memory is started again in halves; what was measured of it is not measured again. With a
    ``work_split`` this is one process of several. All of them go through the same waves, and none can start a wave
    again.

    Args:
        study: What is run.
        device: Where.
        hooks: What is called meanwhile.
        start: Where the study is resumed; None: it begins.
        work_split: Which runs, or which clients, this process has; None: all of them.

    Yields:
        A measurement for each evaluation, and one without rows for each pause that ``hooks.reach`` asks for.

    Raises:
        OutOfMemoryError: A run does not fit alone, or a wave of several processes does not; says how much it needs.
    """
    hooks, work_split = hooks or Hooks(), work_split or WorkSplit.alone()
    precision = choose_precision(study.precision, device)
    plan = (
        start.plan
        if start
        else make_plan(
            study.runs,
            study.model,
            study.batch_size,
            device,
            precision[1],
            work_split.memory,
            work_split.fewest,
            study.groups,
            study.rules,
        )
    )
    hooks.plan(plan)
    reached: dict[int, int] = dict(start.reached) if start else {}
    while plan.left:
        wave = work_split.here(plan.left[0])
        context = RunContext(study, device, precision, hooks, plan, work_split)
        try:
            for found in run_wave(context, wave, start):
                new = [n for n, r in enumerate(found.runs) if found.iteration > reached.get(r, -1)]
                reached |= {found.runs[n]: found.iteration for n in new}
                if not found.rows or len(new) == len(found.rows):
                    yield found
                elif new:
                    yield replace(
                        found,
                        rows=[found.rows[n] for n in new],
                        accuracies=[found.accuracies[n] for n in new],
                        runs=[found.runs[n] for n in new],
                    )
            plan = plan.finished()
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            # The traceback holds the frames that hold what filled the memory.
            why = str(error).strip().split("\n")[0]
        else:
            continue
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if len(wave) == 1 or work_split.team.ranks > 1:
            raise OutOfMemoryError(plan.too_large(study.runs[wave[0]].clients, why))
        plan = plan.halved()
        hooks.plan(plan)


def _out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "not enough memory" in str(error) or "out of memory" in str(error)
