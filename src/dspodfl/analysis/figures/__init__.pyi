from . import style as style
from .accuracy import accuracy_vs_delay as accuracy_vs_delay
from .accuracy import curve as curve
from .graphs import network as network
from .grids import accuracies as accuracies
from .grids import delays as delays
from .grids import sweep as sweep
from .style import COLOURS as COLOURS
from .style import LARGEST as LARGEST
from .style import NAMES as NAMES
from .style import STYLE as STYLE
from .style import axis_head as axis_head
from .style import axis_name as axis_name
from .style import colour as colour
from .style import picture as picture
from .theory import LABELS as LABELS
from .theory import bound_sweep as bound_sweep
from .theory import bound_trajectory as bound_trajectory
from .tuned import tuned as tuned

__all__ = [
    "COLOURS",
    "LABELS",
    "LARGEST",
    "NAMES",
    "STYLE",
    "accuracies",
    "accuracy_vs_delay",
    "axis_head",
    "axis_name",
    "bound_sweep",
    "bound_trajectory",
    "colour",
    "curve",
    "delays",
    "network",
    "picture",
    "style",
    "sweep",
    "tuned",
]
