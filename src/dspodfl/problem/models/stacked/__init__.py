"""Networks of many clients in one pass, each with its own parameters, forward and backward."""
