"""DSpodFL: decentralized federated learning with sporadic computation and communication.

>>> from dspodfl import Config, run
>>> result = run(Config(seeds=1, algorithms=["dspodfl", "dgd"], train={"iterations": 10}))
>>> sorted(set(result.metrics["algorithm"]))
['dgd', 'dspodfl']
"""

from dspodfl._version import __version__
from dspodfl.config import Config
from dspodfl.data import Dataset, Federation
from dspodfl.errors import ConfigError, DataError, InputError
from dspodfl.graph import Graph, Part
from dspodfl.results import Result
from dspodfl.schedule import Events, Schedule
from dspodfl.simulation import Simulation, Update, run

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
    "run",
]
