from . import data as data
from . import models as models
from . import optimum as optimum
from .data import Dataset as Dataset
from .data import Federation as Federation
from .evaluation import Check as Check
from .evaluation import Evaluation as Evaluation
from .evaluation import evaluated_clients as evaluated_clients
from .evaluation import ordered_sum as ordered_sum
from .full_batch import SAMPLES_AT_ONCE as SAMPLES_AT_ONCE
from .models import Model as Model
from .optimum import ClientSamples as ClientSamples
from .optimum import logistic_gradient as logistic_gradient
from .optimum import logistic_minimum as logistic_minimum
from .problem import Problem as Problem

__all__ = [
    "SAMPLES_AT_ONCE",
    "Check",
    "ClientSamples",
    "Dataset",
    "Evaluation",
    "Federation",
    "Model",
    "Problem",
    "data",
    "evaluated_clients",
    "logistic_gradient",
    "logistic_minimum",
    "models",
    "optimum",
    "ordered_sum",
]
