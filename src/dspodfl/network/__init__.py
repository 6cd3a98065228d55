"""Who is linked, how capable clients and links are, and what events cost; no model.

A `Graph` with its clients and links, a `Topology` of links that come and go, mixing weights, `Rates` d_i(k) and
b_ij(k), `Events` and the delays and budgets that are counted from them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
