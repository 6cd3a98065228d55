"""What CI installs is locked by version and SHA-256; data sets are checked by SHA-256."""

import re

import pytest
from scripts import lock

from dspodfl.problem.data import named as sources

PAGE = """
<a href="https://x/demo-1.0-py3-none-any.whl#sha256={a}">demo</a>
<a href="https://x/demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={b}">demo</a>
<a href="https://x/demo-1.0-cp310-cp310-win_amd64.whl#sha256={c}">too old</a>
<a href="https://x/demo-1.0.1-py3-none-any.whl#sha256={c}">another version</a>
<a href="https://x/demo-1.0.tar.gz#sha256={c}">not built</a>
"""


def test_the_lock_is_that_of_the_constraints_and_names_no_host():
    text = lock.LOCK.read_text()
    assert lock.check(lock.CONSTRAINTS.read_text(), text) == []
    assert "://" not in text and "index" not in re.sub("^#.*$", "", text, flags=re.MULTILINE)
    assert "torch-2.13.0+cpu" in text  # the CPU build is accepted as well
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines)


def test_a_lock_that_is_out_of_date_is_said_to_be():
    assert lock.check("a==1\nb==2\n", "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nc==3\n") == [
        "b==2 is not in the lock",
        "c is in the lock alone",
        "c has no digest",
    ]


def test_wheels_of_the_version_for_supported_pythons_are_locked():
    a, b, c = (letter * 64 for letter in "abc")
    found = lock.wheels(PAGE.format(a=a, b=b, c=c), "1.0")
    assert sorted(found.values()) == [a, b]
    text = lock.entry("demo", "1.0", list(found.values()), {"demo-1.0+cpu-py3-none-any.whl": c})
    assert lock.locked(text) == {"demo": [a, b, c]}
    assert lock.also(text) == {"demo": {"demo-1.0+cpu-py3-none-any.whl": c}}


@pytest.mark.parametrize("source", [sources._FMNIST, sources._MNIST, sources._CIFAR], ids=lambda source: source.title)
def test_every_file_of_a_data_set_has_a_sha256(source):
    for known in (*source.hashes.values(), *source.fetched.values()):
        assert re.fullmatch("sha256:[0-9a-f]{64}", known)
