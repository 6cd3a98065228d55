"""The non-IID table of Fashion-MNIST with 600 training images a class, a tenth of them, as in public code for it.

python scripts/tenth_of_fmnist.py [--seeds 20] [--iterations 15000]
"""

from __future__ import annotations

import argparse

import numpy as np

from dspodfl import Config, Dataset, run
from dspodfl.problem.data import load


def main() -> None:
    """Run it and print mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=15000)
    given = parser.parse_args()
    full = load("fmnist")
    some = np.concatenate([np.flatnonzero(full.y_train == c)[:600] for c in range(10)])
    tenth = Dataset(
        "fmnist-tenth", full.x_train[some], full.y_train[some], full.x_test, full.y_test, 10, full.scale, full.shift
    )
    config = Config(
        seeds=given.seeds,
        train={"iterations": given.iterations, "precision": "fp32"},
        eval={"every": max(1, given.iterations // 3)},
    )
    accuracy = run(config, data=tenth).metrics.groupby(["algorithm", "iteration"])["accuracy"]
    print(accuracy.mean().unstack().round(3))
    print(accuracy.std(ddof=0).unstack().round(3))


if __name__ == "__main__":
    main()
