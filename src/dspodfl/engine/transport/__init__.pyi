from . import launch as launch
from . import torch_distributed as torch_distributed

__all__ = [
    "launch",
    "torch_distributed",
]
