"""``dspodfl up``, its first moments: the process that nodes are forked from is started before PyTorch is imported here.

Both then import, and read the data, at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspodfl.config import Config
    from dspodfl.nodes.collection import Collection
    from dspodfl.nodes.supervisor import NodeView

_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 25),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}
"""Of the allocator of glibc: memory of models that were freed is used again, and not asked of the system anew in every
iteration."""


def up(
    config: Config,
    out: Path,
    *,
    max_restarts: int = 10,
    overwrite: bool = False,
    on_change: Callable[[Sequence[NodeView]], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Collection:
    """Run all nodes of a study on this machine, and write the folder that ``dspodfl run`` writes.

    Args:
        config: The configuration; certificates, keys and addresses are made here.
        out: The folder. What the nodes write is in ``nodes`` inside it; where that is there, the study is resumed.
        max_restarts: How often a node that died is started again.
        overwrite: Whether what is in the folder is replaced.
        on_change: Called with all nodes, some times a second.
        say: Gets sentences for a person.

    Returns:
        The result, and what is missing.

    Raises:
        InputError, DataError: Something that was given cannot be used.
        NodesError: A node died too often.
        Interrupted: A signal came; the nodes have saved checkpoints.
    """
    with nursery_process() as nursery:
        from dspodfl.nodes.supervisor import supervised  # imports PyTorch, and so does the other process

        return supervised(
            nursery, config, out, max_restarts=max_restarts, overwrite=overwrite, on_change=on_change, say=say
        )


@contextmanager
def nursery_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start `dspodfl.nodes.nursery`; it ends with the block, at once where that raises.

    Returns:
        The process, which waits for its first command.
    """
    command = [sys.executable, "-m", "dspodfl.nodes.nursery"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**_MALLOC, **os.environ, **_THREADS, "PYTHONPATH": path}
    with subprocess.Popen(command, **pipes, env=environment, start_new_session=True) as nursery:  # noqa: S603
        try:
            yield nursery
        except BaseException:
            nursery.kill()
            raise
        finally:
            assert nursery.stdin is not None
            with suppress(OSError):
                nursery.stdin.close()
