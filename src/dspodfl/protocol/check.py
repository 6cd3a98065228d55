"""Run schedules of the simulator: ``python -m dspodfl.protocol.check --seed 4711 --steps 500``.

One schedule is printed action by action, with the verdict; ``--schedules N`` runs N seeds from ``--seed`` on and prints
the failures alone. Exit code: 0 if everything holds, 1 if something does not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from dspodfl.protocol.schedules import Settings, Verdict, check

_ACTIONS_SHOWN = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after the command's name; None: those of the process.

    Returns:
        The exit code: 0, or 1 if something does not hold.

    Raises:
        SystemExit: With code 2 for bad input, with code 0 for ``--help``.
    """
    options = _parser().parse_args(arguments)
    settings = Settings(options.steps, options.nodes, options.retain, options.faults)
    if options.schedules is None:
        verdict = check(options.seed, settings, record=True)
        print("\n".join(verdict.log))
        print(summary([verdict]))
        return int(verdict.violation is not None)
    verdicts = []
    for seed in range(options.seed, options.seed + options.schedules):
        verdict = check(seed, settings)
        verdicts.append(verdict)
        if verdict.violation is not None:
            print(f"seed {seed}: {verdict.violation}")
    print(summary(verdicts))
    return int(any(verdict.violation is not None for verdict in verdicts))


def summary(verdicts: Sequence[Verdict]) -> str:
    """Describe how schedules went.

    Args:
        verdicts: One for every schedule.

    Returns:
        One line.

    >>> summary([Verdict(3, None, 12, {"frame": 11, "crash": 1}), Verdict(4, "stuck", 1, {"frame": 1})])
    '2 schedules, 13 actions (12 frame, 1 crash): 1 failed, the first with seed 4: stuck'
    """
    count: dict[str, int] = {}
    for verdict in verdicts:
        for action, number in verdict.count.items():
            count[action] = count.get(action, 0) + number
    most = sorted(count.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{number} {action}" for action, number in most[:_ACTIONS_SHOWN])
    failed = [verdict for verdict in verdicts if verdict.violation is not None]
    result = "all hold"
    if failed:
        result = f"{len(failed)} failed, the first with seed {failed[0].seed}: {failed[0].violation}"
    noun = "schedule" if len(verdicts) == 1 else "schedules"
    return f"{len(verdicts)} {noun}, {sum(count.values())} actions ({shown}): {result}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m dspodfl.protocol.check", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=_at_least(0), default=0, help="seed of the first schedule (default: 0)")
    parser.add_argument("--steps", type=_at_least(0), default=Settings.steps, help="random actions of a schedule")
    parser.add_argument("--schedules", type=_at_least(1), help="number of schedules; without it one is printed")
    parser.add_argument("--nodes", type=_at_least(2), help="number of nodes (default: 3 to 5, drawn)")
    parser.add_argument("--retain", type=_at_least(2), help="states kept for a neighbour (default: 2 to 20, drawn)")
    parser.add_argument("--faults", type=_share, help="share of faults among the actions (default: drawn)")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    """Make a reader of integers."""

    def integer(text: str) -> int:
        value = int(text)
        if not least <= value < 2**53:
            raise argparse.ArgumentTypeError(f"{text} is not an integer of at least {least}")
        return value

    return integer


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
