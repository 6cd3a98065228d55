"""``python -m benchmarks cpu [--quick]``."""

from __future__ import annotations

import argparse

from benchmarks import cpu


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, side by side in one run.")
    parser.add_argument("what", choices=["cpu"], help="cpu: the stacked engine against a plain loop, one DGD iteration")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    cpu.main(arguments.quick)


main()
