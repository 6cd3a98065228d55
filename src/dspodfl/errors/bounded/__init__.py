"""Readers of files that others wrote, within bounds: regular files only, limited in size and depth, in UTF-8.

A file that comes with a study (a configuration, a graph, rates, data, weights) may be anything: a pipe that never ends,
a device, a directory, a gigabyte of brackets, an archive that claims to unpack to more than the machine holds. Each
reader checks before it allocates. Whatever is wrong is a `DataError` that names the file, what was found and what is
allowed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
