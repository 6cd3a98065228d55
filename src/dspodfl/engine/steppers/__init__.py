"""Ways to advance a stack of models through a block of iterations; all give the same models."""
