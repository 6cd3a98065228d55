"""What a node does: the runs of a study, one after the other, each as one of their clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import Rule, averaged_models
from dspodfl.config import Config, Nodes
from dspodfl.engine import Client, ClientState, Run, evaluated_iterations, runs_on_nodes
from dspodfl.errors import InputError
from dspodfl.nodes.fingerprints import fingerprints
from dspodfl.nodes.models_file import Header
from dspodfl.nodes.schema import Schema
from dspodfl.protocol import Plan
from dspodfl.study import Study

_DTYPES = {"auto": torch.float32, "fp32": torch.float32, "tf32": torch.float32, "fp64": torch.float64}
_EVERY_ITERATIONS, _EVERY_SECONDS = 200, 30.0
"""When a node saves a checkpoint, where the configuration does not say."""
_LINGER_SECONDS = 5.0
"""How long a node that has finished waits for a neighbour that is gone: nothing can be lost any more."""
SEPARATOR = "/"
"""Stands between the run id of the configuration and the algorithm and seed: HELLO has all three."""


def check_study(config: Config, study: Study) -> None:
    """Refuse a study that does not run on nodes.

    Args:
        config: The configuration.
        study: The study.

    Raises:
        InputError: An algorithm does not run on nodes, or the precision is that of a GPU alone.
    """
    if study.precision not in _DTYPES:
        raise InputError("train.precision", study.precision, f"one of {', '.join(_DTYPES)} on nodes, which use a CPU")
    for rule, run in zip(study.rules, study.runs, strict=True):
        why = runs_on_nodes(rule, run)
        if why is not None:
            raise InputError("algorithms", run.algorithm, f"one that runs on nodes; {why}")


@dataclass(frozen=True, eq=False)
class Job:
    """One run, as one client.

    Args:
        config: The configuration, resolved.
        study: The study.
        number: The number of the run in the study.
        id: The client.
    """

    config: Config
    study: Study
    number: int
    id: int

    @property
    def run(self) -> Run:
        """The run."""
        return self.study.runs[self.number]

    @property
    def rule(self) -> Rule:
        """How models change."""
        return self.study.rules[self.number]

    @property
    def nodes(self) -> Nodes:
        """The table ``[nodes]``."""
        return self.config.nodes or Nodes()

    @property
    def title(self) -> str:
        """What logs call the run."""
        return f"{self.run.algorithm}, seed {self.run.seed}"

    @property
    def run_id(self) -> str:
        """What HELLO calls the run."""
        return f"{self.nodes.run_id}{SEPARATOR}{self.run.algorithm}{SEPARATOR}{self.run.seed}"

    @cached_property
    def client(self) -> Client:
        """The client."""
        study = self.study
        dtype = _DTYPES[study.precision]
        return Client(self.run, self.rule, study.model, self.id, batch_size=study.batch_size, dtype=dtype)

    @cached_property
    def evaluated(self) -> frozenset[int]:
        """The iterations at which the model is written, the last among them; 0 is not."""
        study = self.study
        return frozenset(evaluated_iterations(self.run, study.every, study.at_delay, study.points)) - {0}

    @cached_property
    def iterations(self) -> int:
        """K."""
        return max(self.evaluated, default=0)

    def begin(self) -> ClientState:
        """Return the state before the first iteration."""
        return self.client.begin(self.study.initial([self.run])[0][None])

    @cached_property
    def schema(self) -> Schema:
        """What payloads consist of."""
        phases = self.client.schema.phases
        return Schema.of([[(part.dtype, part.shape) for part in parts] for parts in phases])

    def plan(self) -> Plan:
        """Return the run as the protocol sees it.

        Raises:
            InputError: ``nodes.retain`` is too small.
        """
        client, nodes, saving = self.client, self.nodes, self.config.checkpoint
        given = saving.model_fields_set
        every = saving.every_iterations if "every_iterations" in given else _EVERY_ITERATIONS
        seconds = saving.every_minutes * 60 if "every_minutes" in given else _EVERY_SECONDS
        sizes = client.schema.sizes
        return Plan(
            self.id,
            tuple(sorted(set(client.neighbours))),
            client.fires if sizes else (lambda k: ()),
            self.iterations,
            phases=max(1, len(sizes)),
            sizes=sizes or (1,),
            retain=nodes.retain_bytes,
            run_id=self.run_id,
            config=fingerprints(self.config, {"graph": self.run.rates.graph.edges.tobytes()}),
            schema=client.schema.digest,
            keep=saving.keep,
            every_iterations=every or None,
            every_seconds=seconds or None,
            patience=None if nodes.patience == "auto" else float(nodes.patience),
            linger=_LINGER_SECONDS,
        )

    def header(self) -> Header:
        """Return what the file of models says of them."""
        two = getattr(self.rule, "averaged", None) is not None
        dtype = "float64" if self.client.dtype == torch.float64 else "float32"
        return Header(
            self.id,
            self.nodes.run_id,
            self.run.algorithm,
            self.run.seed,
            self.study.model.parameters,
            vectors=1 + two,
            dtype=dtype,
        )

    def rows(self, state: ClientState) -> tuple[Any, Any]:
        """Return the model that is evaluated, and the row that is averaged where that is another one, (p,) each."""
        averaged = averaged_models(self.rule, state.theta, state.rule)
        return self.client.evaluated(state)[0].numpy(), None if averaged is None else averaged[0].numpy()


Progress = Callable[[dict[str, Any]], None]
"""Called with what a node is doing, some times a second."""


def is_finite(x: Tensor) -> bool:
    """Return whether all values of a tensor on the CPU are finite."""
    return bool(np.isfinite(x.numpy()).all())
