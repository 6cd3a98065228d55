"""Settings that every test shares."""

import os

import matplotlib as mpl
import torch
from hypothesis import settings

mpl.use("Agg")
# The suite runs in several processes: threads of theirs, and of processes they start, would be in each other's way.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("suite", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=300, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
