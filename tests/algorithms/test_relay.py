"""RelaySGD: on a tree every client gets the mean of all models, also where links are silent."""

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import N

from dspodfl.network import Graph

TREE = Graph.from_edges(N, [(0, 1), (0, 6), (1, 2), (2, 3), (2, 4), (4, 5), (6, 7)])
CONTRACT = {"moves_the_mean": True, "graph": TREE}
