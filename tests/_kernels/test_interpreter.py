"""A slice of the GPU kernels on a CPU, under Triton's interpreter. It runs wherever Triton can be imported.

PyPI's torch for Linux brings Triton; with a CPU build of torch, ``pip install '.[interpreter]'`` does.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests._kernels import interpreted

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-m", "tests._kernels.interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [check.__name__ for check in interpreted.CHECKS])
def test_an_interpreted_kernel_gives_what_plain_code_does(name, found):
    assert found[name] == "", found[name]
