"""Short ways to write a configuration: a learning rate as a number, algorithms by any spelling of their names."""

from __future__ import annotations

from typing import Any

from dspodfl.algorithms import ALGORITHMS, registered_name


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """Write the short forms of a configuration out in full.

    ``train.learning_rate = 0.01`` is a constant rate, ``algorithms = "dgd"`` a list of one, names of algorithms
    become the registered ones, and ``checkpoint.every_seconds = 30`` is half a minute.
    What is not a short form is left as it is, to be validated.

    >>> expand({"algorithms": "DGD", "train": {"learning_rate": 0.1}})
    {'algorithms': ['dgd'], 'train': {'learning_rate': {'kind': 'constant', 'value': 0.1}}}
    """
    out = dict(raw)
    names = out.get("algorithms")
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    if isinstance(names, list | tuple):
        out["algorithms"] = [_algorithm(given) for given in names]
    train = out.get("train")
    if isinstance(train, dict) and _is_number(train.get("learning_rate")):
        out["train"] = train | {"learning_rate": {"kind": "constant", "value": train["learning_rate"]}}
    saving = out.get("checkpoint")
    if isinstance(saving, dict) and "every_minutes" not in saving and _is_number(saving.get("every_seconds")):
        rest = {key: value for key, value in saving.items() if key != "every_seconds"}
        out["checkpoint"] = rest | {"every_minutes": saving["every_seconds"] / 60}
    return out


def _algorithm(given: Any) -> Any:
    """Write a registered method by its name, with others' tables as they are given.

    A table that says no more than a name is that name.
    """
    if isinstance(given, str):
        return registered_name(given)
    if not isinstance(given, dict):
        return given
    empty = ("settings", "local")
    out = {key: value for key, value in given.items() if value is not None and not (key in empty and value == {})}
    for key in ("name", "schedule"):
        if isinstance(out.get(key), str):
            out[key] = registered_name(out[key])
    name = out.get("name")
    plain = isinstance(name, str) and name in ALGORITHMS and out.get("label", name) == name
    return name if plain and not out.keys() - {"name", "label"} else out


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
