"""``python -m dspodfl`` is the command line."""

import os
import sys

if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0] or os.curdir) == os.path.realpath(os.curdir):
    del sys.path[0]  # Python put it there: a file of the working directory would take the place of an installed module

from dspodfl.ui import main

main()
