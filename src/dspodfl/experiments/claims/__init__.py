"""Whether measurements bear out a claim: decided by paired differences over seeds, and explained with the numbers.

Algorithms share the draws of a seed, so that they are compared seed by seed. A comparison is decided where the 95%
interval of the differences is on one side of zero (`analysis.statistics`); where it is not, it cannot be told, and
counts neither for a claim nor against it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
