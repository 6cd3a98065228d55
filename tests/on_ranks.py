"""What the processes of a team do in tests: ``launch(ranks, [cases, found], module="tests.on_ranks")``."""

import os
import pickle
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dspodfl import Config
from dspodfl.engine.transport.torch_distributed import Group
from dspodfl.study.simulation import Simulation
from dspodfl.study.store.checkpoint import CheckpointStore, load
from dspodfl.study.store.resume import Unfinished
from dspodfl.study.store.run_folder import RunFolder


def plain(result):
    return {
        "metrics": result.metrics,
        "clients": result.clients,
        "summary": result.summary,
        "models": result.stacked,
        "events": {key: (e.v, e.v_hat) for key, (e, _) in result.events.items()},
    }


def run(team, changes, **more):
    """A study on all ranks; its result, on rank 0, and how many samples each rank holds."""
    simulation = Simulation(Config(**changes), device="cpu", team=team, record_events=True, **more)
    for _ in simulation:
        pass
    held = team.gather(len(simulation.study.runs[0].data.dataset.x_train))
    result = simulation.result()
    return plain(result) | {"held": held} if team.rank == 0 else None


def kept(team, folder, changes, before=None):
    """A study that puts away where it stands, or goes on from there."""
    run_folder = RunFolder(folder, {}) if team.rank == 0 else None
    if run_folder and before:
        run_folder.reopen()
    simulation = Simulation(Config(**changes), device="cpu", team=team)
    simulation.open(run_folder, lambda: False, before=before)
    for _ in simulation:
        pass
    result = simulation.result()
    if run_folder:
        run_folder.release()
    team.barrier()
    return plain(result)


def resumed(team, folder, changes):
    """Go on from every checkpoint of a run; whether each came to the same, to the last bit."""
    each = changes | {"checkpoint": {"every_iterations": 1, "keep": 100}}
    whole = kept(team, Path(folder), each)
    same = []
    for path in CheckpointStore(Path(folder)).committed()[::-1]:
        found = load(path)
        again = kept(team, Path(folder), changes, Unfinished(Path(folder), found, found.about["config"], {}))
        models = all(
            torch.equal(again["models"][key][name], value)
            for key, one in whole["models"].items()
            for name, value in one.items()
        )
        same.append((found.iteration, again["metrics"].equals(whole["metrics"]), models))
    return {"whole": whole, "same": same} if team.rank == 0 else None


class MixesTwice:
    """Θ ← P(PΘ − αV G(Θ))."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return at.mix(at.mix(theta) - at.gradient(theta, at.lr * at.v)), state


def mixed_twice(team, changes):
    """A study under a rule that mixes twice in every iteration; its result, on rank 0."""
    simulation = Simulation(Config(**changes), device="cpu", team=team)
    rule = MixesTwice()
    methods = [replace(method, rule=rule) for method in simulation.study.algorithms]
    simulation.study = replace(simulation.study, algorithms=methods)
    for _ in simulation:
        pass
    result = simulation.result()
    return plain(result) if team.rank == 0 else None


def refused(team, changes):
    """What each rank says of a study that cannot be run."""
    try:
        run(team, changes)
    except Exception as error:
        return team.gather(str(error))
    return team.gather("nothing")


def talked(team):
    """What the transport itself does."""
    rows = [torch.full((1 + other, 3), float(team.rank)) if other != team.rank else None for other in range(team.ranks)]
    room = [torch.empty((1 + team.rank, 3)) if other != team.rank else None for other in range(team.ranks)]
    before = team.sent
    team.start(rows, room)()
    bell, other = team.bell(), team.bell()
    silent = bell.rung()
    team.barrier()
    if team.rank == 1:
        bell.ring()
    team.barrier()
    nothing = [None] * team.ranks
    team.start(nothing, nothing)()
    return team.gather(
        {
            "came": [None if part is None else part.tolist() for part in room],
            "sent": team.sent - before,
            "all_reduce_sum": team.all_reduce_sum(torch.tensor([1.0, float(team.rank)])).tolist(),
            "all_gather": [
                part.tolist()
                for part in team.all_gather(torch.full((team.rank + 1,), team.rank), range(1, team.ranks + 1))
            ],
            "broadcast": team.broadcast(team.rank),
            "bells": (silent, bell.rung(), other.rung()),
            "any": (team.any(team.rank == 1), team.any(False)),
        }
    )


DO = {"run": run, "mixed_twice": mixed_twice, "resumed": resumed, "refused": refused, "talked": talked}


def main():
    cases, out = (Path(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    np.seterr(all="raise", under="ignore")
    team = Group(torch.device("cpu"), 60)
    found = {}
    for name, (what, arguments) in pickle.loads(cases.read_bytes()).items():
        found[name] = DO[what](team, **arguments)
    if team.rank == 0:
        out.write_bytes(pickle.dumps(found))
    team.leave()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # gloo's threads would abort, and hide what went wrong
    os._exit(0)  # as the command line ends a rank
