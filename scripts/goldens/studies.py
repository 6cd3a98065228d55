"""The studies: together they name every choice of the configuration and every option of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.goldens import inputs

Table = dict[str, Any]
BASE: Table = {
    "seeds": 1,
    "algorithms": ["dspodfl", "dgd"],
    "clients": {"count": 8},
    "graph": {"kind": "ring"},
    "data": {"name": "synthetic", "samples": 200, "test_samples": 50, "features": 6, "classes": 4, "separation": 3.0},
    "train": {"iterations": 12, "batch_size": 4, "learning_rate": 0.05},
    "eval": {"every": 4, "targets": [0.3]},
}
"""Two algorithms on a ring of eight, twelve iterations."""
RUN = ("run", "study.toml", "-o", "out")


@dataclass(frozen=True)
class Step:
    """One command line; ``env`` is set while it runs, ``memory`` is what the machine then says is free."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    memory: int | None = None


@dataclass(frozen=True)
class Study:
    """A configuration, the files next to it, and the command lines that are run in their folder.

    ``python`` is a program of its own instead, for what only Python can give; it has the public names alone.
    """

    name: str
    config: Table
    steps: tuple[Step, ...]
    files: tuple[Callable[[Path], None], ...] = ()
    seconds: float = 1.5  # about; long ones are begun first
    python: str = ""


def merged(base: Table, changes: Table) -> Table:
    """Tables merged key by key; a table with another kind replaces the former one."""
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(old, dict) and not {"kind", "law", "name", "factory"} & set(value):
            out[key] = merged(old, value)
        else:
            out[key] = value
    return out


def one(name: str, *files: Callable[[Path], None], more: tuple[str, ...] = (), seconds: float = 1.5, **changes: Any):
    """A study that is run once."""
    env = {"DSPODFL_DATA": "data"} if inputs.images in files or inputs.colours in files else {}
    return Study(name, merged(BASE, changes), (Step((*RUN, *more), env),), files, seconds)


def several(name: str, *lines: str, files: tuple[Any, ...] = (), seconds: float = 4, **changes: Any) -> Study:
    """A study on which several command lines are run, one after the other."""
    return Study(name, merged(BASE, changes), tuple(Step(tuple(line.split())) for line in lines), files, seconds)


_METHODS = [
    "ad_psgd",
    "anarchic",
    "choco",
    "clipped_gossip",
    "d2",
    "decentralized_scaffnew",
    "dfedavgm",
    "ef_hc",
    "exact_diffusion",
    "extra",
    "fedavg",
    "gossip_pga",
    "gradient_tracking",
    "gradskip",
    "kgt",
    "ldsgd",
    "led",
    "local_sgd",
    "matcha",
    "pairwise_gossip",
    "post_local",
    "power_gossip",
    "push_diging",
    "push_pull",
    "push_sum",
    "quasi_global_momentum",
    "scaffnew",
    "scaffold",
    "sporadic_scaffnew",
    "sporadic_tracking",
    "swift",
]
_DIRECTED = ["push_sum", "push_diging", "push_pull", "sporadic_tracking"]


def _methods() -> list[Study]:
    attacks = ("alie", "dissensus", "ipm", "label_flip", "noise", "sign_flip")
    return [
        one("methods", algorithms=_METHODS, graph={"kind": "ring", "weights": "lazy_metropolis"}, seconds=8),
        one("methods-tree", algorithms=["relay"], graph={"kind": "path"}),
        one("methods-complete", algorithms=["bridge"], graph={"kind": "complete"}),
        one("directed", algorithms=_DIRECTED, graph={"kind": "ring", "directed": True}, seconds=3),
        one("full", algorithms=["dspodfl", "gradient_tracking"], train={"batch_size": "full"}),
        *(one(f"attack-{kind}", attack={"clients": [2], "kind": kind}) for kind in attacks),
    ]


def _activity() -> list[Study]:
    tables: dict[str, Table] = {
        "availability-markov": {"availability": {"kind": "markov", "up": 0.3, "down": 0.2}},
        "availability-clocks": {"availability": {"kind": "clocks", "rate": 1.0}},
        "availability-stragglers": {"availability": {"kind": "stragglers", "shift": 2.0, "rate": 0.5}},
        "availability-trace": {"availability": {"kind": "trace", "file": "trace.csv", "seconds": 60.0}},
        "channel": {"channel": {"kind": "gilbert_elliott", "up": 0.3, "down": 0.2}},
        "churn": {"churn": {"kind": "cyclic", "period": 6, "share": 0.5}},
        "diurnal": {"diurnal": {"period": 10.0, "amplitude": 0.5}},
        "law-poisson": {"sgd": {"law": "poisson", "rate": 0.5}},
        "law-deadline": {"sgd": {"law": "deadline", "deadline": 3.0, "shift": 1.0, "rate": 0.5}},
        "law-capacities": {"sgd": {"law": "capacities", "file": "capacities.csv"}},
    }
    return [one(f"activity-{name}", inputs.activity, rates=table) for name, table in tables.items()]


def _graphs() -> list[Study]:
    kinds: dict[str, Table] = {
        "geometric": {"radius": 0.6},
        "ring": {},
        "path": {},
        "star": {},
        "complete": {},
        "grid": {"rows": 2, "columns": 4},
        "torus": {},
        "erdos_renyi": {"p": 0.5, "allow_disconnected": True},
        "regular": {"degree": 4},
        "small_world": {"neighbours": 4, "rewire": 0.3},
        "exponential": {},
    }
    given = {"edges": ("edges.csv", inputs.edges), "matrix": ("matrix.csv", inputs.matrix)}
    given["graphml"] = ("graph.graphml", inputs.graphml)
    switching = {"kind": "switching", "graphs": [{"kind": "star"}, {"kind": "complete"}]}
    dynamics: dict[str, Table] = {
        "bernoulli": {"up": 0.7},
        "markov": {"up": 0.3, "down": 0.2},
        "waypoint": {"speed": [0.05, 0.2], "pause": 2.0},
    }
    walk = {"kind": "geometric", "radius": 0.6}
    return [
        *(one(f"graph-{kind}", graph={"kind": kind, **more}) for kind, more in kinds.items()),
        *(one(f"graph-file-{k}", f, clients=None, graph={"kind": "file", "file": n}) for k, (n, f) in given.items()),
        one("dynamics-switching-period", graph={"dynamics": {**switching, "period": 3}}),
        one("dynamics-switching-times", graph={"dynamics": {**switching, "times": [0, 2, 9]}}),
        *(
            one(f"dynamics-{kind}", graph={**walk, "dynamics": {"kind": kind, **more}, "seed": 5})
            for kind, more in dynamics.items()
        ),
        one("dynamics-static", graph={"dynamics": {"kind": "static"}}, seeds=2),
        *(
            one(f"weights-{rule}", graph={"kind": kind, "weights": rule})
            for rule, kind in (
                ("metropolis", "star"),
                ("lazy_metropolis", "star"),
                ("max_degree", "path"),
                ("equal_neighbour", "exponential"),
            )
        ),
    ]


def _rates() -> list[Study]:
    laws: dict[str, Table] = {
        "beta": {"a": 0.8, "b": 0.6},
        "uniform": {},
        "truncnorm": {"mean": 0.6, "std": 0.3},
        "bimodal": {"mean1": 0.2, "std1": 0.1, "mean2": 0.8, "std2": 0.1},
        "constant": {"value": 0.4},
        "list": {"values": [1.0, 0.5, 0.25, 0.125, 0.9, 0.8, 0.3, 0.6]},
    }
    csv = {"sgd": {"law": "csv", "file": "clients.csv"}, "link": {"law": "csv", "file": "links.csv"}}
    return [
        *(one(f"law-{k}", rates={"sgd": {"law": k, **m}, "link": {"law": k, **m}}) for k, m in laws.items()),
        one("law-csv", inputs.rates, rates=csv),
        one("rates-refresh", algorithms=["dspodfl", "dfedavg"], rates={"refresh": 5, "floor": 0.3, "seed": 3}),
        one(
            "rates-growth",
            rates={"growth": "learning_rate", "link_draw": "symmetric"},
            train={"learning_rate": inputs.DIMINISHING},
        ),
        one("rates-two-sided", algorithms=["dspodfl", "rg"], rates={"link_draw": "two_sided", "growth": "none"}),
    ]


def _data() -> list[Study]:
    mini = {"name": "fmnist-mini"}
    partitions: dict[str, Table] = {
        "iid": {},
        "labels": {"per_client": 2, "allow_unused": True},
        "dirichlet": {"alpha": 0.5},
        "shards": {"per_client": 2},
        "quantity": {"alpha": 0.8},
        "shared": {"samples": 20},
    }
    ridge = {"name": "ridge", "samples": 20, "test_samples": 40, "dimension": 5, "heterogeneity": 0.5}
    return [
        *(
            one(f"partition-{kind}", data={**BASE["data"], "partition": {"kind": kind, **more}, "seed": 2})
            for kind, more in partitions.items()
        ),
        one("data-fmnist-mini", data=mini, clients={"count": 10}, seeds=2, graph={"kind": "geometric", "radius": 0.5}),
        one("data-fmnist", inputs.images, data={"name": "fmnist", "partition": {"kind": "iid"}}),
        one("data-mnist", inputs.images, data={"name": "mnist", "partition": {"kind": "iid"}}),
        one("data-cifar10", inputs.colours, data={"name": "cifar10", "partition": {"kind": "iid"}}),
        one("data-npz", inputs.folder, clients=None, data={"name": "npz", "path": "own"}),
        one("data-ridge", data=ridge, model={"name": "linear"}),
    ]


def _models() -> list[Study]:
    npz = {"name": "npz", "path": "own"}
    small, short = {"count": 4}, {"iterations": 2, "batch_size": 2}
    vgg = {"clients": small, "data": npz, "train": short, "eval": {"every": 2}, "algorithms": ["dspodfl"]}
    own = {"factory": "golden_model:net", "arguments": {"width": 5}, "l2": 0.01}
    regression = {"name": "npz", "path": "regression"}
    mini = {"data": {"name": "fmnist-mini"}, "train": {"iterations": 6}, "clients": small}
    cut = {"partition": {"kind": "labels", "per_client": 4}}
    return [
        one("model-svm", model={"name": "svm"}),
        one("model-logistic", model={"name": "logistic", "l2": 0.01}),
        one("model-linear", inputs.targets, clients=small, data=regression, model={"name": "linear", "l2": 0.05}),
        one("model-mlp", model={"name": "mlp", "hidden": [7, 5]}),
        one("model-cnn", **merged(mini, {"data": cut}), model={"name": "cnn", "channels": [3, 4]}),
        one("model-vgg11", inputs.pictures, **vgg, model={"name": "vgg11", "norm": "none"}, seconds=12),
        one(
            "model-vgg11-group",
            inputs.pictures,
            **vgg,
            model={"name": "vgg11", "norm": "group", "head": "cifar"},
            seconds=12,
        ),
        *(
            one(f"model-factory-{loss}", inputs.module, model={**own, "loss": loss})
            for loss in ("cross_entropy", "hinge")
        ),
        one(
            "model-factory-squared_error",
            inputs.targets,
            inputs.module,
            clients=small,
            data=regression,
            model={**own, "factory": "golden_model:line", "arguments": {}, "loss": "squared_error"},
        ),
    ]


def _train() -> list[Study]:
    five = ["dspodfl", "dgd", "rg", "sporadic_sgd", "dfedavg"]
    orders = ("simultaneous", "combine_then_adapt", "adapt_then_combine")
    rates: dict[str, Table] = {
        "constant": {"value": 0.1},
        "diminishing": {"value": 0.1, "gamma": 4.0},
        "step": {"value": 0.1, "every": 5, "factor": 0.5},
    }
    until: dict[str, Table] = {
        "delay": {"delay": 60.0},
        "normalized_delay": {"normalized_delay": 8.0},
        "bytes": {"bytes": 9000.0},
        "iterations": {"iterations": 10},
    }
    bare = {"every": None}
    return [
        *(one(f"algorithm-{name}", algorithms=[name], seeds=2) for name in five),
        one("algorithms-all", algorithms=five, seed=7, seeds=2, data={"name": "fmnist-mini"}, clients={"count": 10}),
        one("algorithm-own", inputs.schedule, algorithms=["dspodfl", "golden_schedule:every_other"]),
        one("dfedavg-period", algorithms=["dfedavg"], train={"dfedavg_period": 3}),
        *_methods(),
        *_activity(),
        one(
            "local",
            algorithms=[
                {"name": "dspodfl", "label": "m", "local": {"clip": 1.0, "proximal": 0.1, "momentum": 0.9}},
                {"name": "dgd", "label": "n", "local": {"nesterov": 0.5}},
                {"name": "rg", "label": "w", "local": {"adam": True, "decay": 0.1}},
            ],
        ),
        *(
            one(f"order-{o}", train={"order": o, "dfedavg_period": "auto"}, algorithms=["dspodfl", "rg"])
            for o in orders
        ),
        *(one(f"order-{o}-mlp", train={"order": o}, model={"name": "mlp", "hidden": [5]}) for o in orders[1:]),
        *(one(f"precision-{p}", train={"precision": p}) for p in ("auto", "fp64", "fp32", "tf32", "bf16")),
        one("precision-fp64-mlp", train={"precision": "fp64"}, model={"name": "mlp", "hidden": [5]}),
        one("precision-bf16-mlp", train={"precision": "bf16"}, model={"name": "mlp", "hidden": [5]}),
        *(one(f"rate-{kind}", train={"learning_rate": {"kind": kind, **more}}) for kind, more in rates.items()),
        *(
            one(f"budget-{k}", train={"iterations": None, "until": v}, eval={**bare, "points": 5})
            for k, v in until.items()
        ),
        one("budget-cap", train={"iterations": 9, "until": {"delay": 1e6}}, eval={**bare, "points": 3}),
        one("budget-default-points", train={"iterations": None, "until": {"normalized_delay": 6.0}}, eval=bare),
        one(
            "budget-diverged",
            data={
                "name": "synthetic",
                "samples": 200,
                "test_samples": 50,
                "features": 6,
                "classes": 4,
                "noise": 1e8,
                "separation": 2.0,
            },
            model={"name": "mlp", "hidden": [9, 9]},
            train={"learning_rate": 1.0, "iterations": 40},
            eval={"every": 10},
        ),
        one("eval-samples-clients", eval={"samples": 20, "clients": 3}, seeds=2),
        one("eval-at-delay", eval={"at_delay": [5.0, 20.0]}),
        one(
            "seed-of-its-own",
            seed=11,
            seeds=2,
            graph={"kind": "erdos_renyi", "p": 0.6, "seed": 1},
            rates={"seed": 2},
            data={"seed": 3},
        ),
    ]


def _runs() -> list[Study]:
    """Resuming, ranks, waves and what a run may write besides."""
    stopped = {"train": {"iterations": 900}, "eval": {"every": 150}, "checkpoint": {"every_iterations": 200, "keep": 1}}
    spy = {"algorithms": ["dspodfl", "golden_schedule:stopped"], **stopped}
    ranks = [
        one(f"ranks-{n}-{split}", more=("--ranks", str(n)), seconds=6.0 * n, seeds=2, scale={"split": split})
        for n, split in ((1, "auto"), (2, "runs"), (2, "clients"), (3, "runs"), (3, "clients"))
    ]
    mlp = one(
        "ranks-2-clients-mlp",
        more=("--ranks", "2", "--max-restarts", "1", "--save-models"),
        seconds=12,
        seeds=1,
        scale={"split": "clients", "timeout": 120.0},
        model={"name": "mlp", "hidden": [5]},
    )
    waves = {"seeds": 3, "data": {"name": "fmnist-mini"}}
    wave = merged(merged(BASE, {"clients": {"count": 40}}), waves)
    return [
        several(
            "resume",
            " ".join(RUN),
            "show out",
            "verify out",
            "run --resume out",
            "run --resume out",
            "show out",
            "verify out",
            files=(inputs.schedule,),
            **spy,
        ),
        several(
            "resume-refused",
            " ".join(RUN),
            "run --resume out --set train.batch_size=3",
            "run study.toml -o out",
            "run study.toml -o out --overwrite",
            "run study.toml --resume out",
            files=(inputs.schedule,),
            **spy,
        ),
        several("whole", " ".join(RUN), files=(inputs.schedule, inputs.calm), **spy),
        *ranks,
        mlp,
        *(
            Study(f"waves-{name}", wave, (Step(RUN, memory=size),), seconds=3)
            for name, size in (("of-one", 600 * 2**20), ("of-some", 631 * 2**20))
        ),
        one("models-and-events", more=("--save-models", "--record-events"), seeds=2),
        one("quiet", more=("--quiet", "--device", "cpu", "--algorithms", "rg,dgd", "--seeds", "2", "--set", "seed=4")),
        several("json", " ".join((*RUN, "--json", "--overwrite"))),
        several(
            "show-verify-report",
            " ".join(RUN),
            "show out",
            "show out --at iteration=8",
            "show out --at delay=30",
            "show out --at normalized_delay=4",
            "show out --at bytes=2000",
            "verify out",
            "report out -o page.html",
            "report out",
            seeds=2,
        ),
    ]


def _grids() -> list[Study]:
    over = 'sweep study.toml --over train.batch_size=2,5 --over graph.kind="ring","star" -o out'
    ridge = {"name": "ridge", "samples": 20, "test_samples": 40, "dimension": 5}
    regression = {"data": ridge, "model": {"name": "linear"}, "train": {"learning_rate": 0.02}}
    quick = [
        several(
            f"reproduce-{name}",
            f"reproduce {name} --quick -o out{more}",
            "show out",
            "verify out",
            "report out -o page.html",
            seconds=seconds,
        )
        for name, more, seconds in (
            ("fmnist-iid", " --seeds 2 --device cpu", 8),
            ("fmnist-noniid-dynamic", " --seeds 1 --quiet --overwrite", 12),
            ("fmnist-radius-uniform", " --seeds 1 --ranks 2 --max-restarts 1", 30),
            ("fmnist-clients-beta", " --seeds 1", 20),
        )
    ]
    return [
        several("sweep", over, f"{over} --quiet", "show out", "verify out", "report out -o page.html"),
        several(
            "sweep-at-delay",
            'sweep study.toml --over rates.sgd.a=0.5,2 --at-delay 30 --set rates.sgd.law="beta" '
            "--algorithms dspodfl,rg --seeds 2 --device cpu -o out --overwrite",
        ),
        several("sweep-ranks", f"{over} --ranks 2 --max-restarts 1 --quiet", "show out", "verify out", seconds=12),
        several(
            "sweep-another-grid",
            over.replace("2,5", "3"),
            over.replace("2,5", "4"),
            over.replace("2,5", "4") + " --overwrite",
        ),
        *quick,
        several(
            "theory-bound-ridge",
            " ".join(RUN),
            "theory bound study.toml --compare out -o bound",
            "show bound",
            "theory bound study.toml --json --epsilon 0.1 --reach 2",
            "theory bound study.toml --seeds 2 --algorithms dgd --set train.learning_rate=0.001 -o bound --overwrite",
            "verify bound",
            **regression,
        ),
        several("theory-bound-svm", "theory bound study.toml -o bound --points 4", **{"train": {"iterations": 20}}),
        several(
            "theory-bound-logistic",
            "theory bound study.toml -o bound --points 4",
            model={"name": "logistic", "l2": 0.1},
            graph={"dynamics": {"kind": "bernoulli", "up": 0.7}},
        ),
        several(
            "theory-sweep",
            "theory sweep study.toml --over train.learning_rate=0.001,0.01 --over "
            'graph.kind="ring","complete" -o sweep',
            "show sweep",
            "verify sweep",
            "theory sweep study.toml "
            "--over rates.refresh=0 --json --epsilon 0.1 --reach 2 --points 3 --algorithms dspodfl --seeds 1 --set "
            "seed=3",
            "theory sweep study.toml --over train.batch_size=1,2 -o sweep --overwrite",
            **regression,
        ),
    ]


def _words() -> list[Study]:
    """What is printed, and what is refused."""
    lists = ("algorithms", "graphs", "dynamics", "weights", "laws", "datasets", "partitions", "models")
    return [
        several(
            "words",
            "--version",
            "list",
            *(f"list {name}" for name in lists),
            "list learning-rates",
            "check study.toml",
            'check study.toml --set graph.kind="star"',
            "check own.toml --no-code",
            "check own.toml",
            "schema",
            "schema -o schema.json",
            "schema -o schema.json --overwrite",
            "init new.toml",
            "init new.toml",
            "init new.toml --overwrite",
            "check new.toml",
            "reproduce --list",
            "reproduce",
            files=(inputs.own_code, inputs.module),
            seconds=3,
        ),
        several(
            "wrong",
            "run none.toml",
            "run broken.toml",
            'run study.toml --set graph.kind="rings" -o out',
            "run study.toml --set train.batchsize=3 -o out",
            "run study.toml --set train.batch_size=0 -o out",
            "run study.toml --set clients.count=1 -o out",
            "run study.toml --set rates.sgd.value=2 -o out",
            'run study.toml --set graph={kind="file",file="none.csv"} -o out',
            "run study.toml --device tpu -o out",
            "run study.toml --algorithms sgd -o out",
            "run study.toml --seeds 0 -o out",
            "run study.toml --set x -o out",
            "run study.toml --ranks 0 -o out",
            "run --resume none",
            "run study.toml -o study.toml",
            "run --frobnicate",
            'run study.toml --set model={factory="none:net"} -o out',
            "run study.toml --set train.until={delay=1,bytes=2} -o out",
            "frobnicate",
            "show none",
            "verify none",
            "report none",
            "check broken.toml",
            "list colours",
            "sweep study.toml -o out",
            'sweep study.toml --over graph.kind="ring","rings" -o out',
            "reproduce figure-99",
            "show . --at weight=3",
            "theory bound none.toml",
            "init none/new.toml",
            files=(inputs.broken,),
            seconds=5,
        ),
        Study("python-custom", BASE, (), (), python=inputs.PYTHON),
        Study("python-resume", BASE, (), (), python=inputs.PYTHON_RESUME),
    ]


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (*_graphs(), *_rates(), *_data(), *_models(), *_train(), *_runs(), *_grids(), *_words())
}
SLICE = (
    *("algorithms-all", "graph-geometric", "dynamics-markov", "law-csv", "partition-dirichlet", "model-cnn"),
    *("order-adapt_then_combine-mlp", "precision-fp64", "budget-delay", "resume", "waves-of-some", "sweep", "wrong"),
    "theory-bound-ridge",
)
"""What the tests run."""
