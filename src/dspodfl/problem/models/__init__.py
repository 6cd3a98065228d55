"""Models: flat parameter vectors in, scores and objectives out; named ones, VGG11, and any `nn.Module`."""

from dspodfl.problem.models.checks import check_module
from dspodfl.problem.models.custom import from_module, load_factory
from dspodfl.problem.models.losses import LOSSES, Loss, cross_entropy, half_squared_error, hinge
from dspodfl.problem.models.model import Model
from dspodfl.problem.models.vgg import vgg11
from dspodfl.problem.models.zoo import MODELS, build, cnn, linear, logistic, mlp, svm

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
