"""A process that forks commands of ``dspodfl``, so that PyTorch is imported once for all nodes of the tests.

It reads a JSON object a line and writes one a line. A command is ``{"start": number, "words": [...], "stderr": path,
…}``: what ``dspodfl`` is called with, and what is done to the process before: ``namespace`` (a network namespace),
``pause`` (seconds that every model takes to be written), ``lossy`` (faults of the transport), ``environment``.
Answers: ``{"started": number, "pid": …}`` and ``{"exited": number, "code": …}``. Its children die with it.
"""

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time

CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # `up` evaluates where `run` does; exact statements hold on one device
    import torch

    import dspodfl.nodes.keys
    import dspodfl.nodes.process
    import dspodfl.nodes.supervisor
    import dspodfl.study.builder
    import dspodfl.ui.cli.app  # noqa: F401 (imported once, for all)

    torch.set_num_threads(1)
    gc.freeze()
    running = {}
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        ready, _, _ = select.select([0, read], [], [])
        if read in ready:
            os.read(read, 4096)
            reap(running)
        if 0 in ready:
            more = os.read(0, 65536)
            if not more:
                return
            *lines, buffer = (buffer + more).split(b"\n")
            for line in lines:
                command = json.loads(line)
                pid = os.fork()
                if not pid:
                    become(command)
                running[pid] = command["start"]
                say(started=command["start"], pid=pid)


def say(**event):
    os.write(1, json.dumps(event).encode() + b"\n")


def reap(running):
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        say(exited=running.pop(pid), code=os.waitstatus_to_exitcode(status))


def become(command):
    """Run a command in this process, which was forked for it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(command["stderr"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number, end in enumerate((null, out, out)):
            os.dup2(end, number)
        if command.get("namespace"):
            with open(f"/var/run/netns/{command['namespace']}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
        os.environ.update(command.get("environment", {}))
        if command.get("pause"):
            slow_down(command["pause"])
        if command.get("lossy"):
            lose_frames(command["lossy"])
        sys.argv = ["dspodfl", *command["words"]]
        from dspodfl.ui.cli import app

        app.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def slow_down(seconds):
    from dspodfl.nodes.models_file import ModelsWriter

    append = ModelsWriter.append

    def slow(self, *given):
        time.sleep(seconds)
        return append(self, *given)

    ModelsWriter.append = slow


def lose_frames(faults):
    """Wrap the transport of the node."""
    import functools

    from dspodfl import nodes
    from dspodfl.nodes import LossyTransport, NodeOptions

    seed = iter(range(faults.pop("seed"), 1 << 30))
    wrap = lambda inner: LossyTransport(inner, seed=next(seed), **faults)  # noqa: E731
    nodes.NodeOptions = functools.partial(NodeOptions, wrap=wrap)


if __name__ == "__main__":
    main()
