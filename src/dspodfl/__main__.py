"""``python -m dspodfl`` is the command line."""

from dspodfl.cli import main

main()
