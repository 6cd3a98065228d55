"""From a configuration to the problem of a study: the data of every seed, and the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dspodfl.config import data as data_tables
from dspodfl.config import model as model_tables
from dspodfl.config import schema
from dspodfl.errors import InputError, user_code
from dspodfl.problem import data as datasets
from dspodfl.problem import models, optimum
from dspodfl.problem.data import DATASETS, PARTITIONS, Dataset, Federation, with_channel_axis
from dspodfl.study.user_inputs import UserInputs, load_npz


def build_problem(
    config: schema.Config,
    inputs: UserInputs,
    library: dict[str, Dataset],
    tell: Callable[[int, str, float], None] = lambda seed, what, share: None,
) -> tuple[Mapping[int, Federation], models.Model]:
    """Build the data of every seed, and the model.

    Args:
        config: The resolved configuration.
        inputs: What was given in Python.
        library: Datasets by name; those found there are taken, and others put there.
        tell: Called with a seed, what is being built, and the share of it that is done.

    Returns:
        Seed -> the samples of each client; and the model.

    Raises:
        InputError: Data and model do not fit, or a value is not allowed.
        DataError: The data cannot be read.
    """
    loaded, data = _loaded(config, inputs, library), {}
    for seed in range(config.seed, config.seed + config.seeds):
        tell(seed, "data", 0.0)
        data[seed] = _federation(config, loaded, seed)
    return data, _model(config, data[config.seed], inputs)


def _loaded(config: schema.Config, inputs: UserInputs, library: dict[str, Dataset]) -> Dataset | Federation | None:
    """Return the data that all seeds share; None where each seed has a dataset of its own."""
    loaded: Dataset | Federation | None = inputs.data
    table = config.data
    if inputs.data is None and isinstance(table, data_tables.Npz):
        loaded = load_npz(table.path)
    elif inputs.data is None and table.name in DATASETS and not DATASETS[table.name].takes("seed"):
        name = f"{table.name} {parameters}" if (parameters := _parameters(table)) else table.name
        if name not in library:
            library[name] = DATASETS[table.name].make({"root": None, "progress": True}, parameters)
        loaded = library[name]
    if loaded is not None and isinstance(config.model, model_tables.Cnn | model_tables.Vgg11):
        loaded = with_channel_axis(loaded)
    return loaded


def _federation(config: schema.Config, loaded: Dataset | Federation | None, seed: int) -> Federation:
    """Return what the clients of one seed hold."""
    seed = seed if config.data.seed is None else config.data.seed
    table, clients = config.data, config.clients.count
    if isinstance(loaded, Federation):
        return loaded
    if isinstance(table, data_tables.Ridge):
        made = datasets.ridge(seed, clients, **table.model_dump(exclude={"name", "seed"}))
        known = isinstance(config.model, model_tables.Linear)  # the minimizer is that of the linear model
        return made if known else replace(made, optimum=None)
    dataset = loaded
    if dataset is None:
        made_for = {"seed": seed, "root": None, "progress": True}
        dataset = DATASETS[table.name].make(made_for, _parameters(table))
    assert isinstance(dataset, Dataset)
    assert isinstance(table, data_tables.Partitioned | data_tables.CustomData)
    return assign(dataset, table.partition, clients, seed)


def _parameters(table: data_tables.DataTable) -> dict[str, Any]:
    """Return what a table says of its dataset alone."""
    return table.model_dump(exclude={"name", *data_tables.Partitioned.model_fields})


def assign(dataset: Dataset, partition: Any, clients: int, seed: int) -> Federation:
    """Assign the samples of a dataset to clients.

    Args:
        dataset: The samples.
        partition: The table of a partition.
        clients: The number of clients.
        seed: The seed of the draws.

    Returns:
        The dataset with the samples that each client holds.
    """
    context = {"y": dataset.y_train, "clients": clients, "seed": seed}
    parts = PARTITIONS[partition.kind].make(context, partition.model_dump(exclude={"kind"}))
    return Federation(dataset, parts.shards, parts.report() | dict(dataset.about))


def check_optimum(model: models.Model, federation: Federation) -> None:
    """Refuse a known minimizer that is not of the model's size.

    Args:
        model: The model.
        federation: Data that may have a minimizer θ*.

    Raises:
        InputError: The shape of θ* is not (p,).
    """
    best = federation.optimum
    if best is not None and best.shape != (model.parameters,):
        allowed = f"({model.parameters},), one number for each parameter of {model.name}"
        raise InputError("data.optimum", f"shape {best.shape}", allowed)


def with_optimum(model: models.Model, data: Sequence[Federation], attackers: Sequence[int] = ()) -> list[Federation]:
    """Find the minimizer θ* wherever it is not known yet and can be found.

    Args:
        model: The model.
        data: That of each seed; seeds that share their data share its minimizer.
        attackers: Clients whose losses do not count: θ* is that of the others.

    Returns:
        The same with minimizers; without, where samples are read on demand (`dspodfl.problem.data.samples_on_demand`):
        a process that holds one client does not read those of the others for it.
    """
    found: dict[Federation, Federation] = {}
    for federation in dict.fromkeys(data):
        if federation.dataset.on_demand:
            found[federation] = federation
            continue
        if attackers:
            found[federation] = replace(federation, optimum=_honest_optimum(model, federation, set(attackers)))
            continue
        best = optimum.minimizer(model, federation) if federation.optimum is None else None
        found[federation] = federation if best is None else replace(federation, optimum=best)
    return [found[federation] for federation in data]


def _honest_optimum(model: models.Model, federation: Federation, attackers: set[int]) -> np.ndarray | None:
    """Return the minimizer of the mean loss of the clients that do not attack, where it can be found."""
    shards = tuple(shard for client, shard in enumerate(federation.shards) if client not in attackers)
    honest = Federation(federation.dataset, shards, {})
    known = federation.optimum is not None
    return optimum.least_squares(model, honest) if known else optimum.minimizer(model, honest)


def _model(config: schema.Config, federation: Federation, inputs: UserInputs) -> models.Model:
    table, dataset = config.model, federation.dataset
    shape, outputs, regression = dataset.input_shape, dataset.outputs, dataset.classes is None
    if isinstance(table, model_tables.Factory) and not inputs.code:
        user_code.check_name(table.factory, "model.factory")
        return models.build("linear" if regression else "svm", shape, outputs)
    if isinstance(table, model_tables.Factory):
        made = inputs.model if inputs.model is not None else models.load_factory(table.factory)
        return models.from_module(
            made,
            shape,
            outputs,
            loss=table.loss,
            regression=regression,
            l2=table.l2,
            name=table.factory,
            arguments=table.arguments or None,
        )
    if regression and isinstance(table, model_tables.Svm | model_tables.Logistic):
        raise InputError("model.name", table.name, "linear, mlp or a factory: the data are a regression problem")
    if not regression and isinstance(table, model_tables.Linear):
        raise InputError("model.name", "linear", "a classifier: the data have classes")
    parameters = table.model_dump(exclude={"name"}, exclude_none=True)
    if isinstance(config.data, data_tables.Ridge):
        if isinstance(table, model_tables.Linear) and table.l2 not in (None, config.data.l2):
            raise InputError("model.l2", table.l2, f"left out: the penalty is data.l2 = {config.data.l2}")
        if isinstance(table, model_tables.Linear):
            parameters["l2"] = config.data.l2
    return models.build(table.name, shape, outputs, **parameters)
