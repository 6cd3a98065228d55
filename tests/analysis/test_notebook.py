"""A result in a notebook: its table, what is to be known of its data, and its picture, as safe HTML."""

import base64
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from tests.edge import on_the_cpu, tiny

from dspodfl import Result, run
from dspodfl.algorithms.schedules import dgd

HOSTILE = "<script>alert('x')</script>&\""


class Page(HTMLParser):
    """The tags of a fragment, the texts in the cells of its table and the sources of its pictures."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.sources, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag != "img":
            self.open.append(tag)
        self.sources += [value for name, value in attributes if name == "src"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(text)


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    on_the_cpu(monkeypatch)


def test_a_result_shows_a_row_for_each_algorithm_and_the_picture(tmp_path):
    result = run(tiny())
    page = Page(result._repr_html_())
    assert page.open == [] and page.tags.count("tr") == 3
    assert {"DSpodFL", "DGD", "accuracy"} <= set(page.cells)
    mean = result.summary["algorithms"]["dgd"]["final_accuracy"]["mean"]
    assert f"{mean:.3g}" in page.cells  # one seed has no spread
    (source,) = page.sources
    image = Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"), validate=True)))
    assert image.format == "PNG" and image.width > 300
    result.save(tmp_path / "run")
    assert Result.load(tmp_path / "run")._repr_html_() == result._repr_html_()


def test_several_seeds_are_shown_with_their_spread():
    result = run(tiny(seeds=2))
    found = result.summary["algorithms"]["dgd"]["final_accuracy"]
    assert f"{found['mean']:.3g} ± {found['std']:.2g}" in Page(result._repr_html_()).cells


def test_names_are_escaped():
    result = run(tiny(algorithms=["dspodfl"]), schedules={HOSTILE: dgd})
    text = result._repr_html_()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert HOSTILE in Page(text).cells


def test_a_regression_shows_losses():
    config = tiny(data={"name": "ridge", "dimension": 3}, model={"name": "linear"})
    assert {"loss", "‖θ̄ − θ*‖²"} <= set(Page(run(config)._repr_html_()).cells)


def test_test_samples_that_were_cut_off_are_said():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="without test samples"):
        result = run(tiny(), data=(rng.normal(size=(60, 3)), np.arange(60) % 4))
    assert "test samples: 10 of 60 samples, cut off with seed 0" in result._repr_html_()
