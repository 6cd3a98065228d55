"""Doctests of the package: of every module but the entry point and what Numba and Triton compile."""

collect_ignore = ["dspodfl/__main__.py", "dspodfl/_kernels"]
