"""From a configuration to its attack: who attacks and how, and data whose labels attackers have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dspodfl.algorithms import ALGORITHMS, ATTACKS, Attack, sends_models
from dspodfl.config import schema
from dspodfl.errors import InputError
from dspodfl.problem.data import Federation
from dspodfl.study.study import Method


def build_attack(config: schema.Config, methods: Sequence[Method]) -> Attack | None:
    """Build the attack of a configuration.

    Args:
        config: The resolved configuration.
        methods: The algorithms of the study.

    Returns:
        The attack; None where all clients are honest.

    Raises:
        InputError: An attacker is no client or named twice, no client is left, or a method sends more than models.
    """
    table = config.attack
    if table is None:
        return None
    count, attackers = config.clients.count, table.clients
    if max(attackers) >= count:
        raise InputError("attack.clients", attackers, f"clients: there are 0 … {count - 1}")
    if len(set(attackers)) < len(attackers):
        raise InputError("attack.clients", attackers, "different clients: one is there twice")
    if len(attackers) == count:
        raise InputError("attack.clients", attackers, f"fewer than all {count} clients: metrics are of the others")
    context = {"count": count, "attackers": len(attackers)}
    kind = ATTACKS[table.kind].make(context, table.model_dump(exclude={"kind", "clients"}))
    attack = Attack(tuple(sorted(attackers)), kind)
    for method in methods if attack.alters_messages else ():
        if not sends_models(method.rule):
            entry = ALGORITHMS.get(method.label)
            sends = f"it sends {entry.sends}" if entry is not None else "its rule does not declare sends_models"
            allowed = f"left out with {method.label!r}: {sends}, and attackers alter what is a model and nothing else"
            raise InputError("attack.kind", table.kind, allowed)
    return attack


def attacked(data: Federation, attack: Attack | None) -> Federation:
    """Return data with the labels y of attackers changed to C − 1 − y, where the attack is one on labels.

    Args:
        data: The samples of each client.
        attack: Who attacks, and how.

    Returns:
        The same object where nothing is changed. Else attackers hold copies of their samples with other labels, which
        stand after all others: samples may belong to several clients.

    Raises:
        InputError: The data have no labels.
    """
    if attack is None or not attack.kind.alters_data:
        return data
    dataset = data.dataset
    if dataset.classes is None:
        raise InputError("attack.kind", "label_flip", "another attack: the data are a regression problem")
    shards, rows, first = list(data.shards), [], len(dataset.x_train)
    for client in attack.clients:
        rows.append(shards[client])
        shards[client] = np.arange(first, first + len(rows[-1]))
        first += len(rows[-1])
    copied = np.concatenate(rows)
    x = np.concatenate([dataset.x_train, dataset.x_train[copied]])
    y = np.concatenate([dataset.y_train, dataset.classes - 1 - dataset.y_train[copied]])
    return replace(data, dataset=replace(dataset, x_train=x, y_train=y), shards=tuple(shards))
