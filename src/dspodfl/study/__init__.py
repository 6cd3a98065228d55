"""From a configuration to runs, to measurements, to a folder.

`run` is the way in from Python, `Session` the lifecycle behind it (`Simulation` that of one configuration), and
`Result` what comes out.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
