"""The inner loops, written for the processor."""
