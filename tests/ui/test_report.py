"""The report: one page that needs nothing else, whatever the folders hold."""

import base64
import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from tests.edge import CommandLine

from dspodfl.analysis import aggregates as readings
from dspodfl.analysis import formatting
from dspodfl.analysis.metrics import METRICS
from dspodfl.analysis.summary import summarize
from dspodfl.config import Config, dumps
from dspodfl.errors import DataError
from dspodfl.experiments.claims import ClaimCheck
from dspodfl.experiments.result import Outcome
from dspodfl.study.result import Result
from dspodfl.ui.html.page import compose, page

VOID = {"meta", "img", "input", "br"}
ABOUT = {"device": "cpu", "versions": {"dspodfl": "0.1", "python": "3.11"}, "commit": "abc123", "precision": "fp32"}
ABOUT |= {"seeds": 2, "wall_seconds": 12.34}
STUDY = ABOUT | {"iterations": 50, "iterations_done": 50, "plan": None, "seeds": {"0": {"clients": 3}}}
STUDY |= {"complete": True, "run_iterations_per_second": 1.0, "precision": "fp32"}
HOSTILE = "<script>alert(\"x\")</script> & 'quotes' <b>bold</b>"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a test asks of a page; refuses one whose elements are not closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.source, self.elements, self.text, self._open = text, [], "", []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data

    def all(self, tag, **wanted):
        return [a for t, a in self.elements if t == tag and wanted.items() <= a.items()]

    def values(self, name):
        return [a[name] for _, a in self.elements if name in a]


def metrics(axis=None, values=(None,), algorithms=("dspodfl", "dgd"), seeds=2, reach=1.0):
    """Made up: accuracies rise with the iterations, and the second algorithm takes more delay."""
    rows = []
    for value in values:
        for n, algorithm in enumerate(algorithms):
            for seed in range(seeds):
                for k in range(0, 60, 10):
                    row = dict.fromkeys(METRICS, np.nan) | {"algorithm": algorithm, "seed": seed, "iteration": k}
                    delay = k * (1 + n) * (reach if seed else 1.0)
                    row |= {"accuracy": 0.1 + 0.012 * k + 0.01 * seed, "loss": 1.0, "diverged": False}
                    row |= {"delay_total": delay, "delay_processing": 0.7 * delay, "delay_transmission": 0.3 * delay}
                    row |= {"delay_total_normalized": delay / 10}
                    rows.append(({axis: value} if axis else {}) | row)
    return pd.DataFrame(rows)


def outcome(name, kind="sweep", **changes):
    axis = {"sweep": "labels", "delay_table": "link_draw"}.get(kind)
    rows = metrics(axis, {"labels": (1, 5, 10), "link_draw": ("symmetric", "two_sided")}.get(axis, (None,)), reach=0.5)
    axes = [axis] if axis else []
    if kind == "delay_table":
        reading = readings.to_targets(rows, axes, [0.4, 0.705]).assign(
            printed_processing=30.0, printed_transmission=np.nan, printed_total=50.0
        )
    elif kind == "accuracy_table":
        reading = readings.at_iterations(rows, axes, [20, 50]).assign(printed_accuracy=[0.3, np.nan, 0.4, np.nan])
    else:
        reading = readings.at_delay(rows, axes, 40.0)
    found = {
        "title": f"Title of {name}",
        "paper": "Figure 2(a)",
        "claim": "DSpodFL is\nbest.",
        "checks": [
            ClaimCheck("holds", f"It is best in {name}.", "best"),
            ClaimCheck("cannot be told", "three points are needed", "gap"),
        ],
        "config": '[data]\nname = "toml"\n',
        "about": ABOUT,
    }
    made = {"name": name, "kind": kind, "axes": axes, "metrics": rows, "aggregates": reading}
    return Outcome(**(made | found | changes))


def run(folder, algorithms=("dspodfl", "dgd"), rows=None, **config):
    rows = metrics(algorithms=algorithms, reach=0.5) if rows is None else rows
    setting = {"d": np.full(3, 0.5), "b": np.full(2, 0.5), "edges": np.array([[0, 1], [1, 2]])}
    summary = {"study": STUDY, "algorithms": summarize(rows, [0.4, 0.705], [40.0])}
    return Result(rows, pd.DataFrame(), {0: setting}, summary, dumps(Config(**config).model_dump())).save(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reproductions of each kind, a sweep, a run, and one that is not finished."""
    base = tmp_path_factory.mktemp("report")
    many = base / "reproduced"
    not_held = [ClaimCheck("does not hold", "It is not.", "within")]
    outcome("a-sweep").save(many / "a-sweep")
    outcome("b-curves", "curves", paper="Figure 10", checks=not_held).save(many / "b-curves")
    outcome("c-accuracy", "accuracy_table", paper="Table 2").save(many / "c-accuracy")
    mixed = [ClaimCheck("holds", "Yes.", "sooner"), ClaimCheck("does not hold", "No.", "ratio")]
    outcome("d-delay", "delay_table", paper="Table 4", checks=mixed).save(many / "d-delay")
    (many / "e-begun").mkdir()
    (many / "e-begun" / "grid.json").write_text("{}")
    outcome("own", paper="", claim="", checks=[]).save(base / "own")
    run(base / "run")
    outcome("x", title=HOSTILE, paper=HOSTILE, claim=HOSTILE, config=f"# {HOSTILE}", about={HOSTILE: HOSTILE}).save(
        base / "x"
    )
    return base


@pytest.fixture(scope="module")
def whole(folder):
    return Page(page([folder / "reproduced", folder / "own", folder / "run"]))


def copied(folder, name, tmp_path):
    """Without a manifest, so that files can be changed."""
    copy = shutil.copytree(folder / name, tmp_path / "copy")
    (copy / "manifest.json").unlink()
    return copy


def test_every_folder_has_a_section_with_its_figure_and_is_in_the_contents(whole):
    sections = [a["aria-labelledby"] for a in whole.all("section")]
    names = ("a-sweep", "b-curves", "c-accuracy", "d-delay", "own", "run")
    assert sections == [f"section-{name}" for name in names]  # Figure 2 before Figure 10, one's own last, as given
    assert [a["href"] for a in whole.all("a")] == [f"#{name}" for name in sections]
    assert len(whole.all("figure")) == 7  # the run has its network too
    assert not whole.all("svg")
    kinds = [a["src"].partition(";")[0] for a in whole.all("img")]
    assert kinds.count("data:image/svg+xml") == 6 and kinds.count("data:image/png") == 1
    for name in names[:5]:
        assert any(f"Title of {name}" in a["alt"] for a in whole.all("img"))
    assert whole.text.count("a-sweep; 2 seeds, toml") == 2
    assert "e-begun: not finished; the command that began it continues it" in whole.text


def test_verdicts_are_said_in_words_and_signs(whole):
    assert "(holds: 2, holds in part: 1, does not hold: 1)." in whole.text
    plain = " ".join(whole.text.split())
    for word in ("✓ holds It is best in a-sweep.", "? cannot be told three points", "✗ does not hold It is not."):
        assert word in plain
    assert plain.count("◐ holds in part") == 2  # contents and section of one
    assert "What the paper claims DSpodFL is best." in plain
    assert "cannot be told" not in whole.text.partition("Title of own")[2].partition("Title of a-sweep")[0]


def test_reasons_follow_what_was_found(tmp_path):
    outcome("told", explanation="It is\nslow: `a < b`.").save(tmp_path / "told")
    text = page([tmp_path])
    assert (
        "<b>Why: </b>It is slow: <code>a &lt; b</code>." in text and "<b>Why" not in text.partition("What was found")[0]
    )


def test_what_claims_nothing_has_no_verdict(folder):
    text = Page(page([folder / "own"])).text
    assert "cannot be told" not in text and "paper" not in text


def test_numbers_have_spread_counts_and_what_was_printed(whole):
    plain = " ".join(whole.text.split())
    for text in (
        "0.580 1/2",  # one of two seeds got to the delay: no spread
        "0.345 ± 0.007 (paper 0.30: +0.045)",  # ddof 1
        "two_sided 0.705 DSpodFL",
        "22.5 [18.8, 26.2]",
        "15.8 paper 30 (0.53×) 6.75 22.5 [18.8, 26.2] paper 50 (0.45×) 2/2",  # the parts of the total add up to it
        "> 37.5 paper 50",  # half of the seeds never got there
    ):
        assert text in plain, text


def test_a_run_is_shown_with_the_table_and_the_sentence_of_the_terminal(folder):
    from dspodfl.analysis import comparison

    result = Result.load(folder / "run")
    table = comparison.table(comparison.compare(result.metrics, result.config, result.summary["study"]))
    plain = " ".join(Page(page([folder / "run"])).text.split())
    assert table.sentence and table.sentence in plain and table.caption in plain
    for row in table.rows:
        assert " ".join(row.cells) in plain


def test_settings_and_provenance_are_there(whole):
    for text in ('name = "toml"', "Varied: labels = 1, 5, 10.", "dspodfl 0.1, python 3.11", "abc123", "fp32", "12.3 s"):
        assert text in whole.text
    assert len(whole.all("details")) == 12


def test_ids_are_unique_and_every_reference_is_met(whole):
    ids = whole.values("id")
    assert len(ids) == len(set(ids))
    used = [value[1:] for value in whole.values("href")] + whole.values("aria-labelledby") + whole.values("for")
    assert len(used) > 15
    assert set(used) <= set(ids)


def test_nothing_is_fetched(whole):
    assert all(value.startswith(("#", "data:")) for name in ("src", "href") for value in whole.values(name))
    assert not re.search(r"https?://|@import|url\(", whole.source)
    assert not whole.all("script") and not whole.all("link")
    (policy,) = whole.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'")


def test_the_page_says_its_language_landmarks_and_headers(whole):
    assert whole.all("html", lang="en") and whole.all("title") and whole.all("h1")
    assert all(len(whole.all(tag)) == 1 for tag in ("header", "nav", "main"))
    assert all("scope" in a for a in whole.all("th"))
    assert len(whole.all("caption")) == len(whole.all("table"))
    assert all(a.get("role") == "group" and a["aria-label"] for _, a in whole.elements if a.get("tabindex"))


def test_texts_are_escaped(folder):
    found = Page(page([folder / "x"]))
    assert not found.all("script") and not found.all("b")
    assert " ".join(found.text.split()).count(HOSTILE) >= 7  # contents, title, paper twice, claim, settings, provenance


def test_names_are_escaped(tmp_path):
    names = ("<i>&\"'", "dspodfl")
    rows = metrics("a<b", ("<u>", "&amp;"), names)
    own = outcome("n", metrics=rows, aggregates=readings.at_delay(rows, ["a<b"], 40.0), axes=["a<b"])
    own.save(tmp_path / "<em>")
    run(tmp_path / '"><em>', names)
    found = Page(page([tmp_path]))
    assert not any(found.all(tag) for tag in ("i", "u", "em"))
    for text in ("<i>&\"'", "a<b = <u>, &amp;.", '"><em>'):
        assert text in found.text


EVIL = "</style></script><script>alert(1)</script><img src=x onerror=alert(1)>\x00\x1b[2J\u202e\ud800"
SVG = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" width="9"'
DRAWINGS = {
    "handlers": f'<svg {SVG} ONLOAD="alert(1)" onload="alert(1)"><g oNcLiCk="alert(1)"/></svg>',
    "scripts": f"<svg {SVG}><script>alert(1)</script><SCRIPT>alert(1)</SCRIPT></svg>",
    "links": f'<svg {SVG}><a HREF="javascript:alert(1)"><rect width="9" height="9"/></a></svg>',
    "loads": f'<svg {SVG}><image href="http://localhost:9/x.png"/><style>@import URL(http://localhost:9/)</style></svg>',
    "pages": f'<svg {SVG}><foreignObject><iframe src="http://localhost:9/"/></foreignObject></svg>',
    "breaks out": '"></svg><script>alert(1)</script>',
    "no SVG": "\x00\xff not a picture",
    "nothing": "",
    "deep": f"<svg {SVG}>" + "<g>" * 30_000 + "</g>" * 30_000 + "</svg>",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Folders whose every text and picture would run something, if it could."""
    base = tmp_path_factory.mktemp("hostile")
    plain = outcome("plain").save(tmp_path_factory.mktemp("plain") / "outcome")
    texts = dict.fromkeys(("title", "paper", "claim", "explanation", "config"), EVIL)
    texts["config"] = "#" + EVIL.replace("\x00", "").replace("\x1b", "").replace("\u202e", "").replace("\ud800", "")
    for number, (name, drawing) in enumerate(DRAWINGS.items()):
        made = outcome(
            EVIL, about={EVIL: EVIL, "nested": {EVIL: [EVIL]}}, checks=[ClaimCheck("holds", EVIL, "best")], **texts
        )
        at = base / f"{number} {name}'\"><script>alert(1)<"
        shutil.copytree(plain, at)
        (at / "manifest.json").unlink()  # a stranger has none, or one that agrees with the files
        record = json.loads((at / "result.json").read_text())
        record |= {
            "name": made.name,
            "title": made.title,
            "paper": made.paper,
            "says": made.claim,
            "why": made.explanation,
        }
        record |= {"about": made.about, "config": made.config, "verdicts": [check.record() for check in made.checks]}
        (at / "result.json").write_text(json.dumps(record))
        (at / "figure.svg").write_text(drawing, encoding="latin-1")
    run(base / "run", (EVIL.replace("\ud800", ""), "dspodfl"))
    (base / "run" / "manifest.json").unlink()
    (base / "run" / "network.png").write_text(DRAWINGS["handlers"])
    return base


def test_no_file_of_a_stranger_becomes_a_part_of_the_page(hostile):
    made = compose([hostile])
    found = Page(made.html)
    assert made.skipped == [] and len(found.all("section")) == len(DRAWINGS) + 1
    assert len(found.all("img")) == len(DRAWINGS) + 2  # the run has its network too
    known = (
        "html head meta title style body header h1 h2 h3 p nav main section div table caption span thead tbody tr th td"
    )
    known += " ul li figure img input label figcaption details summary pre code dl dt dd a small b br"
    assert {tag for tag, _ in found.elements} <= set(known.split())
    names = {name for _, attributes in found.elements for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert all(
        value.startswith(("#section-", "data:image/")) for name in ("src", "href") for value in found.values(name)
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", made.html)
    made.html.encode()


@pytest.mark.skipif(BROWSER is None, reason="needs chromium, chromium-browser or google-chrome")
def test_a_browser_runs_and_fetches_nothing_of_what_strangers_wrote(hostile, tmp_path):
    (tmp_path / "page.html").write_text(page([hostile]), encoding="utf-8")
    done = browse(tmp_path / "page.html", tmp_path)
    assert done.stdout.count("<section") == len(DRAWINGS) + 1
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert told == [] and "<script" not in re.sub(r'"[^"]*"', "", done.stdout)


def test_a_picture_is_the_file_and_nothing_but_an_image(folder, tmp_path):
    copy = copied(folder, "own", tmp_path)
    (copy / "figure.svg").write_text(DRAWINGS["handlers"])
    text = page([copy])
    (image,) = Page(text).all("img")
    head, _, content = image["src"].partition(",")
    assert head == "data:image/svg+xml;base64" and base64.b64decode(content).decode() == DRAWINGS["handlers"]
    assert "ONLOAD" not in text


def test_a_figure_that_is_missing_is_drawn(folder, tmp_path):
    copy = copied(folder, "own", tmp_path)
    (copy / "figure.svg").unlink()
    (ours,), (theirs,) = (Page(page([path])).all("img") for path in (copy, folder / "own"))
    drawings = [base64.b64decode(image["src"].partition(",")[2]) for image in (ours, theirs)]
    assert drawings[0].count(b"<path") == drawings[1].count(b"<path") > 20 and ours["alt"] == theirs["alt"]


def test_a_folder_given_twice_is_shown_once(folder):
    found = Page(page([folder / "own", folder / "reproduced" / ".." / "own", folder / "run"]))
    assert len(found.all("section")) == 2


def test_equal_names_get_ids_of_their_own(folder, tmp_path):
    copy = copied(folder, "own", tmp_path)
    found = Page(page([folder / "own", copy]))
    assert [a["aria-labelledby"] for a in found.all("section")] == ["section-own", "section-own-2"]
    assert len(found.values("id")) == len(set(found.values("id")))


def test_a_regression_shows_the_error(tmp_path):
    rows = metrics(reach=0.5).assign(accuracy=np.nan, optimality_error=lambda t: 1.5e-7 + 2e-8 * t["seed"])
    run(tmp_path / "run", rows=rows, train={"until": {"delay": 20.0}})  # every seed gets there
    text = Page(page([tmp_path / "run"])).text
    assert "1.60e-07 ± 1.4e-08" in text and "‖θ̄ − θ*‖²" in text


SUMMARY = json.dumps({"study": STUDY, "algorithms": summarize(metrics(), [0.4], [40.0])})
BAD = [
    ({}, "holds no run"),
    ({"note.txt": "x"}, "holds no run"),
    ({"sub/note.txt": "x"}, "holds no run"),
    ({"grid.json": "{}"}, "not finished"),
    ({"sub/grid.json": "{}"}, "not finished"),
    ({"metrics.jsonl": ""}, "not finished; continue it with: dspodfl run --resume"),
    ({"metrics.journal": ""}, "not finished; continue it with: dspodfl run --resume"),
    ({"metrics.journal": "", "summary.json": "{}"}, "not finished; continue it with: dspodfl run --resume"),
    ({"sub/metrics.journal": ""}, "not finished"),
    ({"result.json": "{"}, "metrics.parquet is missing"),
    ({"result.json": '"text"'}, "metrics.parquet is missing"),
    ({"result.json": "[" * 100_000}, "metrics.parquet is missing"),
    ({"result.json": '{"guaranteed": true}'}, "a result of the theory"),
    ({"summary.json": "{}"}, "summary.json is not a summary: study: field required"),
    ({"summary.json": SUMMARY}, "config.toml is missing"),
    ({"summary.json": "[" * 100_000}, "summary.json is damaged (lists and objects nest more than 64 deep)"),
    ({"summary.json": "{"}, "summary.json is damaged (Expecting"),
    (
        {"result.json": '{"kind": "theory bound"}'},
        "a result of the theory, which has no section here; its manifest.json",
    ),
    ({"summary.json": "[]", "config.toml": ""}, "summary.json is not a summary: as a whole"),
    ({"summary.json": SUMMARY, "config.toml": ""}, "metrics.parquet is missing"),
]


@pytest.mark.parametrize(("files", "says"), BAD)
def test_a_folder_with_nothing_to_show_is_skipped_by_name_and_alone_refused(folder, tmp_path, files, says):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for name, text in files.items():
        (wrong / name).parent.mkdir(parents=True, exist_ok=True)
        (wrong / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(f"{wrong}") + ".*" + re.escape(says)):
        page([wrong])
    made = compose([folder / "own", wrong])
    assert len(made.skipped) == 1 and str(wrong) in made.skipped[0] and says in made.skipped[0]
    found = Page(made.html)
    assert len(found.all("section")) == 1 and made.skipped[0] in found.text


def test_what_is_no_folder_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        page([folder / "own", tmp_path / "not there"])


@pytest.mark.parametrize(
    ("name", "file", "text", "says"),
    [
        ("own", "table.csv", "a,b\n1,2\n", "a file in it is damaged"),
        ("own", "metrics.parquet", "x", "metrics.parquet is damaged"),
        ("own", "result.json", "{}", "result.json is damaged"),
        ("own", "result.json", "{", "result.json is damaged"),
        ("own", "result.json", "[" * 100_000, "result.json is damaged (NestedError: lists and objects nest"),
        ("run", "config.toml", "a = ", "config.toml is damaged"),
        ("run", "config.toml", "\xff", "config.toml is damaged"),
        (
            "run",
            "config.toml",
            "a = " + "[" * 100_000,
            "config.toml is damaged (lists and tables nest more than 64 deep",
        ),
        ("run", "metrics.parquet", "x", "metrics.parquet is damaged"),
        ("run", "summary.json", "[" * 100_000, "summary.json is damaged (lists and objects nest more than 64 deep"),
        ("run", "metrics.parquet", None, "metrics.parquet is missing"),
        ("run", "summary.json", '{"study": 1}', "summary.json is not a summary: study: "),
        ("run", "summary.json", '{"study": {"seeds": 3}, "algorithms": []}', "summary.json is not a summary: study."),
    ],
)
def test_a_damaged_folder_is_skipped_by_name_and_the_others_are_shown(folder, tmp_path, name, file, text, says):
    copy = copied(folder, name, tmp_path)
    (copy / file).unlink()
    if text is not None:
        (copy / file).write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=re.escape(f"{copy}: ") + ".*" + re.escape(says)):
        page([copy])
    made = compose([copy, folder / "own" if name == "run" else folder / "run"])
    assert len(made.skipped) == 1 and says in made.skipped[0] and made.html.count("<section ") == 1


def test_the_table_on_the_disk_has_every_digit_of_the_numbers(tmp_path):
    """Whoever rounds them gets what the terminal and the page show."""
    made = outcome("own")
    made.aggregates.loc[0, "accuracy_mean"] = 1 / 3
    read = Outcome.load(made.save(tmp_path / "own")).aggregates
    assert (tmp_path / "own" / "table.csv").read_bytes() == formatting.to_csv(made.aggregates)
    pd.testing.assert_frame_equal(read, made.aggregates, check_dtype=False, check_exact=True)


def test_a_sweep_of_regression_is_shown_by_what_was_measured_and_named_in_words(tmp_path):
    rows = metrics("train.batch_size", (1, 2)).assign(accuracy=np.nan, optimality_error=0.5)
    title = "study over train.batch_size"
    reading = readings.at_delay(rows, ["train.batch_size"], 40.0)
    made = outcome("own", metrics=rows, aggregates=reading, axes=["train.batch_size"], title=title, paper="", claim="")
    found = Page(page([made.save(tmp_path / "own")]))
    assert "study over batch size (samples per SGD step)" in found.text and title not in found.text
    assert "‖θ̄ − θ*‖² against batch size (samples per SGD step)." in found.text
    assert len(found.all("table")) == 2  # the contents, and no table of normalized delays, which has no numbers


@pytest.mark.parametrize("file", ["network.png", "accuracy_vs_delay.svg"])
def test_a_picture_that_is_missing_is_named_with_the_command_that_draws_it(folder, tmp_path, file):
    copy = copied(folder, "run", tmp_path)
    (copy / file).unlink()
    found = Page(page([copy]))
    assert len(found.all("img")) == 1
    assert f"{file} is missing; draw it with: dspodfl show {copy}" in found.text


def test_files_that_are_no_regular_ones_are_not_opened(folder, tmp_path):
    copy = copied(folder, "run", tmp_path)
    (copy / "network.png").unlink()
    os.mkfifo(copy / "network.png")
    assert "network.png cannot be read: it is a pipe (FIFO), and must be a regular file" in Page(page([copy])).text


@pytest.mark.parametrize("file", ["summary.json", "config.toml", "metrics.parquet", "manifest.json"])
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(folder, tmp_path, file):
    copy = shutil.copytree(folder / "run", tmp_path / "copy")
    (copy / file).unlink()
    os.mkfifo(copy / file)
    with pytest.raises(DataError, match=rf"{file} cannot be read: it is a pipe \(FIFO\), and must be a regular file"):
        page([copy])


@pytest.mark.parametrize(("file", "kind"), [("summary.json", "JSON"), ("config.toml", "TOML")])
def test_files_that_are_too_large_are_refused_by_name(folder, tmp_path, monkeypatch, file, kind):
    copy = copied(folder, "run", tmp_path)
    monkeypatch.setattr(f"dspodfl.errors.bounded.{kind}", 20)
    with pytest.raises(DataError, match=f"{file} has .* bytes; must have at most 20"):
        page([copy])


def test_the_command_says_what_it_skipped_and_refuses_where_nothing_is_left(folder, tmp_path, monkeypatch, capsys):
    command = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "grid.json").write_text("{}")
    done = command("report", folder / "own", "begun", "--out", "page.html")
    assert done.code == 0 and "skipped begun: not finished" in done.err and (tmp_path / "page.html").is_file()
    (tmp_path / "page.html").unlink()
    done = command("report", "begun", "--out", "page.html")
    assert done.code == 2 and "begun: not finished" in done.err and "Traceback" not in done.err
    assert not (tmp_path / "page.html").exists()


def test_words_can_be_told_from_their_ground(whole):
    for theme in re.findall(r":root \{(.*?)\}", whole.source, re.DOTALL):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", theme))
        pairs = [(name, f"{name}-ground") for name in ("holds", "part", "not", "untold")]
        for text, ground in (*pairs, ("text", "ground"), ("faint", "ground"), ("link", "ground"), ("text", "soft")):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, colours[text])


def contrast(one, other):
    """As WCAG 2 defines it."""

    def light(colour):
        parts = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def browse(path, profile):
    """Open a file in a browser; gives the page that it made of it, and what its console says."""
    flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --enable-logging=stderr --v=0"
    return subprocess.run(
        [
            BROWSER,
            *flags.split(),
            f"--user-data-dir={profile / 'profile'}",
            "--window-size=1400,1000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


HARNESS = """<!DOCTYPE html><title>measure</title>{frames}<pre id="measured"></pre><script>
onload = () => {{
  const found = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, root = page.documentElement;
    const box = e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height];
    return {{
      width: frame.contentWindow.innerWidth,
      sideways: root.scrollWidth - root.clientWidth,
      figures: [...page.querySelectorAll("figure")].map(box),
      drawings: [...page.querySelectorAll("figure img")].map(box),
      cut: [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll") &&
        (e.getBoundingClientRect().right > frame.contentWindow.innerWidth + 1 || e.getBoundingClientRect().left < -1))
        .map(e => e.outerHTML.slice(0, 200)),
      wide: [...page.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1)
        .map(e => e.querySelector("img") ? "picture" : "table"),
      empty: [...page.querySelectorAll("img")].filter(e => !e.naturalWidth).length,
      requests: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
    }};
  }});
  document.getElementById("measured").textContent = JSON.stringify(found);
  console.log("measured");
}};
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs chromium, chromium-browser or google-chrome")
def test_a_browser_shows_it_at_any_width(folder, tmp_path):
    text = page([folder / "reproduced", folder / "own", folder / "run", folder / "x"])
    opened = text.replace("<details>", "<details open>")
    frames = "".join(
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{html.escape(content)}"></iframe>'
        for width in (390, 1280)  # a window of the browser itself cannot be narrower than 500
        for content in (text, opened)
    )
    (tmp_path / "harness.html").write_text(HARNESS.format(frames=frames), encoding="utf-8")
    done = browse(tmp_path / "harness.html", tmp_path)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and '"measured"' not in line] == []
    assert '"measured"' in done.stderr  # the console is heard
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert measured is not None
    found = json.loads(html.unescape(measured[1]))
    assert [at["width"] for at in found] == [390, 390, 1280, 1280]
    for at in found:
        assert at["sideways"] == 0
        assert len(at["figures"]) == len(at["drawings"]) == 8
        assert all(width > 300 and height > 60 for width, height in (*at["figures"], *at["drawings"]))
        assert at["empty"] == 0 and at["requests"] == []
        assert at["cut"] == [] and "picture" not in at["wide"]  # pictures scale; tables scroll in their own box
    assert "table" in found[0]["wide"]
