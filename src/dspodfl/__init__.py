"""DSpodFL: decentralized federated learning with sporadic computation and communication.

>>> from dspodfl import Config, run
>>> result = run(Config(seeds=1, algorithms=["dspodfl", "dgd"], train={"iterations": 10}))
>>> sorted(set(result.metrics["algorithm"]))
['dgd', 'dspodfl']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dspodfl._version import __version__
from dspodfl.errors import ConfigError, DataError, InputError

if TYPE_CHECKING:
    from dspodfl.algorithms import Schedule
    from dspodfl.config import Config
    from dspodfl.network import Events, Graph, Part
    from dspodfl.problem.data import Dataset, Federation
    from dspodfl.study import Result, Simulation, Update, replay, run

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "Events",
    "Federation",
    "Graph",
    "InputError",
    "Part",
    "Result",
    "Schedule",
    "Simulation",
    "Update",
    "__version__",
    "replay",
    "run",
]

_HOME = {
    "Config": "config",
    "Dataset": "problem.data",
    "Events": "network",
    "Federation": "problem.data",
    "Graph": "network",
    "Part": "network",
    "Result": "study",
    "Schedule": "algorithms",
    "Simulation": "study",
    "Update": "study",
    "replay": "study",
    "run": "study",
}


def __getattr__(name: str) -> Any:
    """Import PyTorch and the rest when they are first asked for: the command line answers, and stops, at once."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
