"""Settings that every test shares."""

import os

import matplotlib as mpl
import torch
from hypothesis import settings

mpl.use("Agg")
torch.set_num_threads(1)  # the suite runs in several processes, whose threads would only get into each other's way
settings.register_profile("suite", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=300, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
