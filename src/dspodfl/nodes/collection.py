"""From the folders of nodes to the folder that ``dspodfl run`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspodfl.config import Config, labels_of
from dspodfl.errors import DataError, InputError, bounded
from dspodfl.nodes.models_file import StoredModel, StoredModels
from dspodfl.nodes.node_folder import NODE, NodeFolder, check_same
from dspodfl.nodes.own_data import stand_in
from dspodfl.study import NodeModels, Result, collected

_NAMED = 10
"""Missing nodes that a message names, at most."""


@dataclass(frozen=True, eq=False)
class Collection:
    """What was collected.

    Attributes:
        result: The result that was written.
        notes: A line for each thing that is damaged or missing.
    """

    result: Result
    notes: list[str] = field(default_factory=list)


def collect(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    overwrite: bool = False,
    partial: bool = False,
    seconds: float = 0.0,
    device: str = "auto",
    **brought: Any,
) -> Collection:
    """Write the folder that ``dspodfl run`` writes, from the folders of nodes.

    Algorithms that no node has models of are left out, and so are seeds before the first and after the last of which
    there are.

    Args:
        folders: The folders of nodes, or folders whose sub-folders are such; one for each node, or several of different
            algorithms and seeds.
        out: Where the result is written.
        overwrite: Whether a result that is already there is replaced.
        partial: Whether nodes may be missing: what needs their models is then null.
        seconds: How long the nodes have trained.
        device: Where models are evaluated: auto, cpu or cuda.
        **brought: ``model``, ``data`` and ``graph``, as for `dspodfl.run`.

    Returns:
        The result, and what is missing or damaged. Nothing is written where an error is raised.

    Raises:
        InputError: Folders are of different runs or configurations, two hold the same models, or nodes are missing.
        DataError: A folder is not that of a node, or is damaged.
    """
    nodes = [NodeFolder.read(path) for path in _expanded([Path(folder) for folder in folders])]
    for node in nodes[1:]:
        check_same(node, nodes[0], id=False)
    target = Path(out).resolve()
    if any(target == node.path.resolve() for node in nodes):
        raise InputError("out", str(out), "another folder than those of nodes")
    tables = bounded.parse_toml(nodes[0].config)
    held = _held(nodes)
    if brought.get("data") is None and tables["data"]["name"] == "custom":
        brought["data"] = stand_in({node.id: node.path for node in nodes}, held.clients)
        held = replace(held, own_test=held.own_test or brought["data"] is not None)
    missing = _check_nodes(held, _clients(nodes[0], tables), partial)
    notes = [*missing, *held.notes]
    if not held.runs:
        raise DataError(f"{nodes[0].path}: no model was written yet by any node")
    config = _restricted(tables, held, first=brought.get("data") is not None)
    lost = {key: min(found) for key, found in held.diverged().items()}
    result = collected(config, held, out, diverged=lost, overwrite=overwrite, seconds=seconds, device=device, **brought)
    return Collection(result, notes)


def _expanded(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of nodes: those given, and the sub-folders of those that are none."""
    found: list[Path] = []
    for folder in folders:
        inside: list[Path] = []
        if bounded.is_folder(folder) and not (folder / NODE).exists():
            inside = sorted(path.parent for path in folder.glob(f"*/{NODE}"))
        found += inside or [folder]
    if not found:
        raise InputError("folders", "none", "at least one folder of a node")
    return list(dict.fromkeys(found))


def _clients(node: NodeFolder, tables: Mapping[str, Any]) -> int:
    """The number of clients of the study."""
    count = tables.get("clients", {}).get("count") if isinstance(tables.get("clients"), Mapping) else None
    if not isinstance(count, int):
        raise DataError(f"{node.path}: its configuration does not say how many clients there are")
    return count


@dataclass(frozen=True, eq=False)
class _Held:
    """The models of all nodes: called as `dspodfl.study.collected` does."""

    clients: int
    models: Mapping[int, Mapping[tuple[str, int], Sequence[StoredModels]]]
    """Node -> (label, seed) -> its files."""
    own_test: bool
    notes: list[str]

    @property
    def runs(self) -> set[tuple[str, int]]:
        """(label, seed) of which any node has models."""
        return {key for found in self.models.values() for key in found}

    def diverged(self) -> dict[tuple[str, int], list[int]]:
        """(label, seed) -> where nodes have found that the run has diverged."""
        out: dict[tuple[str, int], list[int]] = {}
        for found in self.models.values():
            for key, files in found.items():
                gone = [stored.diverged for stored in files if stored.diverged is not None]
                if gone:
                    out.setdefault(key, []).extend(gone)
        return out

    def __call__(self, algorithm: str, seed: int, iteration: int) -> NodeModels:
        """Return the models of all nodes at an iteration."""
        found = [self._at(node, (algorithm, seed), iteration) for node in range(self.clients)]
        rows = [None if one is None else torch.from_numpy(one.model) for one in found]
        averaged = [None if one is None or one.averaged is None else torch.from_numpy(one.averaged) for one in found]
        known: list[Tensor | None] | None = averaged if any(row is not None for row in averaged) else None
        scores = [None if one is None else one.score for one in found]
        return NodeModels(rows, known, scores if self.own_test else None)

    def _at(self, node: int, key: tuple[str, int], iteration: int) -> StoredModel | None:
        for stored in self.models.get(node, {}).get(key, ()):
            found = stored.at(iteration)
            if found is not None:
                return found
        return None


def _held(nodes: Sequence[NodeFolder]) -> _Held:
    """Read which models there are in all folders."""
    models: dict[int, dict[tuple[str, int], Sequence[StoredModels]]] = {}
    where: dict[tuple[int, tuple[str, int]], Path] = {}
    notes: list[str] = []
    for node in nodes:
        found, said = node.models()
        notes += said
        mine = models.setdefault(node.id, {})
        for key, files in found.items():
            if key in mine:
                both = f"{where[node.id, key]} has models of node {node.id}, {key[0]!r}, seed {key[1]} as well"
                raise InputError("folder", str(node.path), f"left out: {both}")
            mine[key], where[node.id, key] = files, node.path
    tables = bounded.parse_toml(nodes[0].config)
    return _Held(_clients(nodes[0], tables), models, any(node.own_test for node in nodes), notes)


def _check_nodes(held: _Held, clients: int, partial: bool) -> list[str]:
    """Refuse nodes that the study does not have, and missing ones; return a line for each thing that is missing."""
    foreign = sorted(id_ for id_ in held.models if not 0 <= id_ < clients)
    if foreign:
        raise InputError("folder", f"of node {foreign[0]}", f"of a node from 0 to {clients - 1}, which the study has")
    missing = [id_ for id_ in range(clients) if id_ not in held.models]
    if missing and not partial:
        allowed = "the folders of all nodes; with --partial (partial=True) what needs their models is null"
        raise InputError("folders", f"without node {_listed(missing)}", allowed)
    notes = [f"node {_listed(missing)}: no folder was given; its models are missing"] if missing else []
    for label, seed in sorted(held.runs):
        without = [id_ for id_, found in sorted(held.models.items()) if (label, seed) not in found]
        if without:
            notes.append(f"node {_listed(without)}: no models of {label!r}, seed {seed}; they are missing")
    return notes


def _listed(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(map(str, ids[:_NAMED])) + more


def _restricted(tables: Mapping[str, Any], held: _Held, first: bool) -> Config:
    """Return the configuration with the algorithms and seeds that nodes have models of.

    Args:
        tables: The configuration of the nodes.
        held: Their models.
        first: Whether the first seed must stay: data that are given in Python are split by it.
    """
    labels, found = labels_of(tables["algorithms"]), [seed for _, seed in held.runs]
    named = [given for given, label in zip(tables["algorithms"], labels, strict=True) if label in _labels(held)]
    unknown = sorted(_labels(held) - set(labels))
    if unknown:
        raise DataError(f"there are models of {unknown[0]!r}, an algorithm that the configuration does not name")
    start, end = int(tables["seed"]), int(tables["seed"]) + int(tables["seeds"])
    strange = [seed for seed in found if not start <= seed < end]
    if strange:
        raise DataError(f"there are models of seed {strange[0]}, which the configuration does not have")
    start = start if first else min(found)
    return Config(**{**tables, "algorithms": named, "seed": start, "seeds": max(found) - start + 1})


def _labels(held: _Held) -> set[str]:
    return {label for label, _ in held.runs}
