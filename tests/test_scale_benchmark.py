"""The benchmark over ranks, and the model that is fitted to it."""

import json

import numpy as np
import pytest
from benchmarks import scale, scale_model
from benchmarks.scale_plot import draw

from dspodfl.analysis.figures import picture

COSTS = scale_model.Costs(step=8e-6, row=6e-6, event=3e-8, byte=1e-9, host=4e-4)


def rows():
    """What would be measured if the model were true."""
    out = []
    for algorithm, p in (("dspodfl", 0.5), ("dgd", 1.0)):
        for kind, ranks, clients in (("strong", 1, 2000), ("strong", 2, 2000), ("weak", 1, 1000), ("weak", 4, 4000)):
            sent = 1e6 * ranks * (ranks > 1) * (1 + p)
            share = clients / ranks
            seconds = COSTS.seconds(p * share, share, 6 * clients, sent / ranks, ranks)
            out.append(
                {
                    "kind": kind, "algorithm": algorithm, "ranks": ranks, "clients": clients, "links": 5 * clients,
                    "links_cut": 100, "best": seconds, "median": seconds, "busy": seconds, "speedup": 1.5,
                    "relief": 1.6,
                    "phases": {"events": 1e-4} | ({"compute": 1e-3, "send": 1e-4, "wait": 1e-4} if ranks > 1 else {}),
                    "bytes": sent, "bytes_predicted": sent, "bytes_of_events": sent,
                }
            )  # fmt: skip
    return out


def test_the_fit_finds_the_costs_that_made_the_rows():
    found, missed = scale_model.fit(rows())
    assert np.allclose([vars(found)[key] for key in vars(COSTS)], list(vars(COSTS).values()), rtol=1e-6)
    assert max(map(abs, missed)) < 1e-9


def test_more_gpus_send_less_each_and_take_no_longer():
    run, graph = scale_model.thousand()
    cluster = scale_model.Cluster(step=1e-4, row=5e-5, event=0.0, bandwidth=1e11, host=0.0)
    shares = scale_model.spread(run, graph, [1, 8, 64])
    found = [scale_model.predict(share, graph, 10**6, cluster) for share in shares]
    assert [row["ranks"] for row in found] == [1, 8, 64]
    assert found[0]["rows"] == 0 and found[0]["seconds"] > found[1]["seconds"] > found[2]["seconds"]
    assert found[1]["rows"] > found[2]["rows"] > 0


def test_a_report_becomes_a_table_and_a_picture(tmp_path, capsys):
    report = {"machine": "a machine", "cores": 2, "rows": rows()}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert picture(draw(report), "png")[:4] == b"\x89PNG"
    assert scale.main(["--read", str(tmp_path / "report.json")]) == 0
    table = capsys.readouterr().out
    assert "| dspodfl, strong | 2 | 2,000 | 100 |" in table and "1.60×" in table


def test_one_rank_is_the_ordinary_engine(monkeypatch):
    monkeypatch.setattr(scale, "_STRIDE", 2)
    monkeypatch.setattr(scale.torch, "set_num_threads", lambda count: None)
    sampler = scale.events.EventSampler
    monkeypatch.setattr(sampler, "block", sampler.block)  # it is replaced while it is timed, and restored here
    found = scale.measure(30, 6.0, "dspodfl", 6)
    assert found is not None
    assert (found["ranks"], found["links_cut"], found["bytes"]) == (1, 0, 0)
    assert found["bytes_predicted"] == found["bytes_of_events"] == 0
    assert len(found["seconds"]) == 2 and found["busy"] > 0


@pytest.mark.parametrize("algorithm", ["dspodfl", "dgd"])
def test_rows_of_the_events_are_those_expected_within_two_percent(algorithm):
    run, graph = scale_model.thousand()
    run = scale.make_run(algorithm, graph, run.data)
    owner = scale.place(graph, np.ones(graph.n), np.ones(graph.n), 4)
    assert scale._events(run, owner, 200) == pytest.approx(scale.expected_rows(run, owner, 0, 200), rel=0.02)
