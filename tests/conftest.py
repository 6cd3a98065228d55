"""Settings that every test shares."""

import matplotlib as mpl
from hypothesis import settings

mpl.use("Agg")
settings.register_profile("suite", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("suite")
