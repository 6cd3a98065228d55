"""Errors that a person can act on, and the checks that raise them.

Beside the classes: readers of files of strangers (`bounded`), the memory that is left (`memory`), code of the user
(`user_code`), and signals. Nothing of the package is below this room but kernels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
