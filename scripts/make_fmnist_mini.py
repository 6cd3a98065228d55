"""Builds src/dspodfl/data/fmnist_mini.npz: 600 training and 100 test images a class, out of Fashion-MNIST.

The choice is addressed (seed 0) and the file has fixed timestamps, so that anyone gets the same arrays, and the
same bytes wherever the zlib is the same:

    python scripts/make_fmnist_mini.py          # writes the file
    python scripts/make_fmnist_mini.py --check  # compares with the file in place, and exits with 1 if it differs
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

from dspodfl import rng
from dspodfl.problem.data.named import MINI_FILE, load
from dspodfl.rng import Stream

TARGET = Path(__file__).resolve().parents[1] / "src" / "dspodfl" / "data" / MINI_FILE
PER_CLASS = {"train": 600, "test": 100}


def chosen(y: np.ndarray, per_class: int, k: int) -> np.ndarray:
    """Indices of ``per_class`` samples of each class, in the order of the full set. Shapes: (n,) -> (chosen,)."""
    picks = []
    for label in range(10):
        members = np.flatnonzero(y == label)
        picks.append(members[rng.permutation(0, Stream.DATA, len(members), i=label, k=k)[:per_class]])
    return np.sort(np.concatenate(picks))


def mini() -> dict[str, np.ndarray]:
    """The four arrays: images (samples, 28, 28) and labels (samples,), all bytes."""
    full = load("fmnist")
    train = chosen(full.y_train, PER_CLASS["train"], k=0)
    test = chosen(full.y_test, PER_CLASS["test"], k=1)
    return {
        "x_train": full.x_train[train, 0],
        "y_train": full.y_train[train].astype(np.uint8),
        "x_test": full.x_test[test, 0],
        "y_test": full.y_test[test].astype(np.uint8),
    }


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as .npz, without the time and the machine it was made on."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(entry, content.getvalue(), compresslevel=9)
    return out.getvalue()


def same_arrays(file: Path, arrays: dict[str, np.ndarray]) -> bool:
    """Whether the file holds exactly these arrays."""
    with np.load(file, allow_pickle=False) as found:
        return set(found.files) == set(arrays) and all(
            found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in arrays.items()
        )


def main() -> int:
    """Writes the file, or with --check compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with the file in place, write nothing")
    arguments = parser.parse_args()
    arrays = mini()
    content = packed(arrays)
    if not arguments.check:
        TARGET.write_bytes(content)
        print(f"{TARGET}: {len(content)} bytes")
        return 0
    if not TARGET.is_file() or not same_arrays(TARGET, arrays):
        print(f"{TARGET}: missing or different; run this script without --check")
        return 1
    same = TARGET.read_bytes() == content
    print(f"{TARGET}: same arrays, {'same bytes' if same else 'other bytes (another zlib)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
