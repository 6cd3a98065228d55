"""What tests of a method use of the contract, which reads their facts when it is imported: it is imported later."""

from importlib import import_module


def _of_contract(name, *args, **how):
    return getattr(import_module("tests.algorithms.test_contract"), name)(*args, **how)


def random_events(*args, **how):
    """Random events of clients and links: v (iterations, clients), v̂ (iterations, links)."""
    return _of_contract("random_events", *args, **how)


def states(*args, **how):
    """Models, the state and the link memory of a rule after every iteration of listed events."""
    return _of_contract("states", *args, **how)


def still(*args):
    """A model of p numbers, and clients whose gradients are all 0."""
    return _of_contract("still", *args)
