from .checks import check_module as check_module
from .custom import from_module as from_module
from .custom import load_factory as load_factory
from .linear import has_bias as has_bias
from .losses import LOSSES as LOSSES
from .losses import Loss as Loss
from .losses import cross_entropy as cross_entropy
from .losses import half_squared_error as half_squared_error
from .losses import hinge as hinge
from .model import Model as Model
from .row_gradient import RowGradient as RowGradient
from .row_gradient import row_gradient as row_gradient
from .vgg import vgg11 as vgg11
from .zoo import MODELS as MODELS
from .zoo import build as build
from .zoo import cnn as cnn
from .zoo import linear as linear
from .zoo import logistic as logistic
from .zoo import mlp as mlp
from .zoo import svm as svm

__all__ = [
    "LOSSES",
    "MODELS",
    "Loss",
    "Model",
    "RowGradient",
    "build",
    "check_module",
    "cnn",
    "cross_entropy",
    "from_module",
    "half_squared_error",
    "has_bias",
    "hinge",
    "linear",
    "load_factory",
    "logistic",
    "mlp",
    "row_gradient",
    "svm",
    "vgg11",
]
