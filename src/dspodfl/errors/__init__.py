"""Errors that a user can act on, and the checks that raise them.

Besides the classes: readers of files that others wrote (`bounded`), the available memory (`memory`), user code
(`user_code`), and signals. Nothing of the package is below this room but kernels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
