"""Models: flat parameter vectors in, scores and objectives out; named ones, VGG11, and any `nn.Module`."""

from dspodfl.models.checks import check_module
from dspodfl.models.custom import from_module, load_factory
from dspodfl.models.losses import LOSSES, Loss, cross_entropy, half_squared_error, hinge
from dspodfl.models.model import Model
from dspodfl.models.modules import MODELS, build, cnn, linear, logistic, mlp, svm
from dspodfl.models.vgg import vgg11

__all__ = [
    "LOSSES",
    "MODELS",
    "Loss",
    "Model",
    "build",
    "check_module",
    "cnn",
    "cross_entropy",
    "from_module",
    "half_squared_error",
    "hinge",
    "linear",
    "load_factory",
    "logistic",
    "mlp",
    "svm",
    "vgg11",
]
