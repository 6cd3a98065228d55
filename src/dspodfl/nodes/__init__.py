"""Training over a real network: frames, transports, keys and processes; each node is one client.

The frames (`Wire`) and the schema of payloads are pure; a transport moves frames, over TLS or in memory, and calls a
`Handler`. What the messages mean is the matter of `dspodfl.protocol`. A node writes its models to its folder
(`NodeFolder`), and `collect` makes a result of the folders of all nodes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
