"""One file a method: its name is the file's, and ``ENTRY`` says what it is (`dspodfl.algorithms.entry`).

The files are read to list and to validate names: they import nothing that is slow to import.
"""
