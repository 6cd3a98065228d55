from . import conv as conv
from . import group_norm as group_norm
from . import linear as linear
from . import loss_head as loss_head
from . import minibatch as minibatch
from . import mixing as mixing
from . import ordered_sum as ordered_sum
from .conv import Gate as Gate
from .conv import Precision as Precision
from .group_norm import Groups as Groups

__all__ = [
    "Gate",
    "Groups",
    "Precision",
    "conv",
    "group_norm",
    "linear",
    "loss_head",
    "minibatch",
    "mixing",
    "ordered_sum",
]
