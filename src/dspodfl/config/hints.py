"""What was probably meant by a key that does not exist: other names in use, and the tables that have the key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import cast

from pydantic import BaseModel

from dspodfl.config.reference import GIVEN_IN_PYTHON, TAGS, tables_of, tag
from dspodfl.config.schema import Config
from dspodfl.errors import nearest, shown

_LENGTH = ("train.iterations", "train.until")
_CLIENTS = ("clients.count",)
_OTHER_NAMES: dict[tuple[str, ...], str] = {
    ("train.learning_rate",): "lr alpha eta step_size base_lr initial_lr",
    _LENGTH: "rounds num_rounds n_rounds comm_rounds communication_rounds epochs num_epochs n_epochs local_epochs "
    "steps num_steps n_steps max_steps iters max_iters num_iters n_iters num_iterations n_iterations max_iterations "
    "iteration K T",
    ("train.until", "train.until_delay"): "budget max_delay delay_budget delay normalized_delay bytes",
    ("train.batch_size",): "batch batchsize bs minibatch minibatch_size mini_batch_size local_batch_size",
    ("train.precision",): "dtype float_type",
    ("train.order",): "update_order rule",
    ("train.dfedavg_period",): "local_steps local_iterations period_dfedavg",
    _CLIENTS: "num_clients n_clients client_count clients_count number_of_clients nodes num_nodes n_nodes workers "
    "num_workers n_workers agents num_agents n_agents devices num_devices users num_users m n",
    ("data.name",): "dataset data_set dataset_name data_name",
    ("data.path",): "data_path data_dir dataset_path folder",
    ("data.classes",): "num_classes n_classes",
    ("data.features",): "num_features n_features",
    ("data.partition",): "partitioning split_kind non_iid noniid distribution data_split",
    ("data.partition.kind",): "partition_kind partition_type partition_name",
    ("data.partition.alpha",): "alpha dirichlet_alpha dirichlet concentration",
    ("data.partition.per_client",): "classes_per_client labels_per_client shards_per_client",
    ("graph.kind",): "topology graph_type graph_kind graph_name network_type network",
    ("graph.weights",): "mixing mixing_weights mixing_matrix weight_rule",
    ("graph.dynamics",): "time_varying dynamic",
    ("model.name",): "network_name model_name model_type net arch architecture",
    ("model.hidden",): "hidden_size hidden_sizes hidden_units hidden_layers width",
    ("model.channels",): "num_channels filters",
    ("model.l2",): "weight_decay wd l2_penalty regularization lambda",
    ("model.factory",): "module function factory_path",
    ("rates.sgd",): "sgd_rate sgd_rates compute_rate d client_rate client_rates participation",
    ("rates.link",): "link_rate link_rates communication_rate b",
    ("seed",): "random_seed rng_seed first_seed random_state",
    ("seeds",): "num_seeds n_seeds repeats repetitions trials num_trials runs num_runs",
    ("algorithms",): "algorithm algos algo method methods optimizer optimiser schedules schedule",
    ("eval.every", "eval.points"): "eval_every evaluate_every eval_interval eval_freq eval_frequency log_every "
    "log_interval interval test_every",
    ("eval.targets",): "target target_accuracy target_accuracies",
    ("eval.at_delay",): "at_delays delays",
    ("checkpoint.every_iterations", "checkpoint.every_minutes"): "checkpoint_every save_every save_interval",
    ("checkpoint.keep",): "keep_checkpoints max_checkpoints",
    ("scale.timeout",): "rank_timeout",
    ("graph",): "network topology",
    ("train",): "training optimizer optim trainer hyperparameters",
    ("eval",): "evaluation evaluate test testing",
    ("data",): "dataset data_set",
    ("model",): "net network_model",
}
"""Keys of the configuration -> names in use elsewhere for what they mean."""

_OPTIONS = {
    "device": "device",
    "gpu": "device",
    "cuda": "device",
    "out": "out",
    "output": "out",
    "outdir": "out",
    "outputdir": "out",
    "resume": "resume",
    "overwrite": "overwrite",
}
"""What is no key of a study but an option of the command, or an argument of ``run``."""
_MOST, _LONGEST = 4, 60


_NEAR = 0.88
"""A key of the same table that is spelt this much like it is the one that was meant."""


def hint(path: str, value: object, known: Sequence[str] = ()) -> str:
    """Suggest keys for one that does not exist.

    Args:
        path: the key as the user wrote it, with its tables, e.g. ``train.lr``.
        value: what it was set to.
        known: the keys of its table, where the table stands in a list.

    Returns:
        A clause such as ``did you mean train.learning_rate?``, or an empty string.
    """
    table, _, key = path.rpartition(".")
    if len(key) > _LONGEST:  # no key is as long, and likeness takes long
        return ""
    kinds = list(dict.fromkeys(filter(None, _index().get(path, []))))
    if kinds:  # other alternatives of the same table have it
        return f"it belongs to {_listed([repr(kind) for kind in kinds], 'and')}"
    here = [place for place in _paths() if table and place.rpartition(".")[0] == table]
    here = here or (list(known) if table else [])
    if alike := [place.rpartition(".")[2] for place in here if _likeness(key, place) >= _NEAR]:
        return f"did you mean {alike[0]!r}?"
    found = [other for other in _candidates(key, value) if other != path]
    near = [other for other in found if table and other.partition(".")[0] == table.partition(".")[0]]
    found = (near or found)[:_MOST]
    if found:
        return f"did you mean {_listed(found, 'or')}?"
    option = _OPTIONS.get(_bare(key))
    if option:
        return f"it is no key: use the option --{option}, or in Python run(…, {option}=…)"
    return _closest(table, key)


def for_table(path: str, value: object) -> str:
    """Suggest how to write a table where something else was given, e.g. ``graph = "ring"``."""
    held = _tables().get(path, [])
    tags = [word for table in held if (word := tag(table)) not in (None, GIVEN_IN_PYTHON)]
    key = next((name for name in TAGS for table in held if name in table.model_fields), None)
    if isinstance(value, str) and value in tags:
        return f"; did you mean {path}.{key} = {value!r}?"
    if path in _GIVEN and not isinstance(value, str | int | float):
        return f"; from Python give it to run(…, {path}=…)"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    meant = _WRITTEN.get((path, "number" if number else type(value).__name__))
    if meant:
        fits = not path.startswith("rates") or not number or 0 < cast(float, value) <= 1
        return f"; did you mean {meant.format(shown(value, 40) if fits else '…')}?"
    if len(tags) > 1:
        return f" with {key}, one of {', '.join(tags)}{nearest(str(value), tags) if isinstance(value, str) else ''}"
    return ""


_GIVEN = ("graph", "data", "model")
"""Tables in the place of which an object may be given to ``run``."""
_WRITTEN = {
    ("clients", "number"): "clients.count",
    ("train.until", "number"): "train.until = {{ delay = {} }}",
    **{(f"rates.{of}", "number"): f'rates.{of} = {{{{ law = "constant", value = {{}} }}}}' for of in ("sgd", "link")},
    **{(f"rates.{of}", "list"): f'rates.{of} = {{{{ law = "list", values = {{}} }}}}' for of in ("sgd", "link")},
}
"""What is probably meant by a number or a list in the place of a table; {} is the value."""


def _candidates(key: str, value: object) -> list[str]:
    bare, paths = _bare(key), _paths()
    named = [place for place in _other_names().get(bare, []) if place in paths]
    same = sorted((p for p in paths if _bare(p.rpartition(".")[2]) == bare), key=lambda place: place.count("."))
    found = list(dict.fromkeys([*named, *same]))
    if isinstance(value, dict):  # a table is meant, if there is one
        return [place for place in found if place in _tables()] or found
    return [place for place in found if place not in _tables() or place in _PLAIN] or found


_PLAIN = ("train.learning_rate", "train.until", "data.partition", "rates.sgd", "rates.link", "graph.dynamics")
"""Tables that are written in one line, so that their name is what a user means."""


def _closest(table: str, key: str) -> str:
    """The key that is spelt most like it, here or, if that is clearer, elsewhere."""
    here = [place for place in _paths() if place.rpartition(".")[0] == table]
    away = [place for place in _paths() if place not in here]
    best = max(here, key=lambda place: _likeness(key, place), default="")
    other = max(away, key=lambda place: _likeness(key, place), default="")
    if other and _likeness(key, other) >= max(0.8, _likeness(key, best) + 0.01):
        return f"did you mean {other}?"
    return f"did you mean {best.rpartition('.')[2]!r}?" if best and _likeness(key, best) >= 0.5 else ""


def _likeness(key: str, place: str) -> float:
    return SequenceMatcher(None, key, place.rpartition(".")[2]).ratio() if place else 0.0


def _bare(key: str) -> str:
    return re.sub(r"[\s_-]+", "", key).casefold()


def _listed(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


@cache
def _other_names() -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for paths, names in _OTHER_NAMES.items():
        for word in names.split():
            out.setdefault(_bare(word), []).extend(paths)
    return out


@cache
def _index() -> dict[str, list[str]]:
    """Path of each key -> the alternatives that have it; the empty word where its table is the only one."""
    found: dict[str, list[str]] = {}
    _walk(Config, "", found, {})
    return found


def _paths() -> list[str]:
    return list(_index())


@cache
def _tables() -> dict[str, list[type[BaseModel]]]:
    held: dict[str, list[type[BaseModel]]] = {}
    _walk(Config, "", {}, held)
    return held


def _walk(
    table: type[BaseModel], path: str, found: dict[str, list[str]], held: dict[str, list[type[BaseModel]]]
) -> None:
    for key, field in table.model_fields.items():
        place = f"{path}.{key}" if path else key
        untagged = "factory" if "factory" in table.model_fields else ""
        found.setdefault(place, []).append(tag(table) or untagged)
        inner = tables_of(field.annotation)
        if inner and place not in held:
            held[place] = inner
            for one in inner:
                _walk(one, place, found, held)
