"""Keys that all tests of nodes share."""

import pytest
from tests.nodes.processes import Farm

from dspodfl.nodes import new_keys


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """A folder with the keys of nodes 0 to 3."""
    folder = tmp_path_factory.mktemp("keys")
    new_keys(folder, range(4))
    return folder


@pytest.fixture(scope="session")
def _farm():
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def farm(_farm):
    """Starts nodes; what a test leaves running is killed."""
    yield _farm
    _farm.kill_all()
