"""Plans, runs and evaluations as a notebook shows them: short, and whatever they hold is text."""

import json
from html.parser import HTMLParser

import pytest

from smallvit.evaluation import Evaluation
from smallvit.recipes import plan
from smallvit.runs import Run
from smallvit.training import train
from tests.training.makers import arrays, folder_of_images, tiny
from tests.untrained import untrained

NASTY = "<img src=x onerror=alert(1)>&\x1b[31m"


class Html(HTMLParser):
    """Tags that were opened, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.text, self.deep = set(), "", []
        self.feed(html)
        self.close()
        assert self.deep == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.deep.append(tag)

    def handle_endtag(self, tag):
        assert self.deep.pop() == tag

    def handle_data(self, data):
        self.text += data


PLAIN = {"div", "table", "caption", "b", "tbody", "tr", "th", "td", "p"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return train(tiny(arrays(folder / "noise.npz")), out=folder / "run", shown=False)


def test_a_run(run):
    assert (
        repr(run) == f"Run({str(run.folder)!r}: finished after 6 steps, vit_lite_2_p4 on noise.npz)"
    )
    html = Html(run._repr_html_())
    assert html.tags <= PLAIN
    assert f"{run.info['parameters']:,}" in html.text
    assert run.evaluation().accuracy.percent in html.text


def test_an_evaluation(run):
    evaluation = run.evaluation()
    share = evaluation.accuracy.percent
    assert repr(evaluation) == f"Evaluation(test: 24 images of 3 classes, accuracy {share})"
    html = Html(evaluation._repr_html_())
    assert html.tags <= PLAIN
    assert all(line.split("  ")[0] in html.text for line in evaluation.summary().split("\n")[1:])


def test_a_plan(tmp_path):
    source = folder_of_images(tmp_path / "photos")
    planned = plan(str(source), device="cpu", minutes=1)
    about = f"{planned.config.model.name} on photos: {len(planned.dataset.split('train'))} images"
    assert repr(planned).startswith(f"Plan({about} of 3 classes at ")
    assert repr(planned).endswith(", 1 minutes)")
    html = Html(planned._repr_html_())
    assert html.tags <= PLAIN
    for path, reason in planned.reasons.items():
        assert path in html.text
        assert reason in html.text
    for finding in planned.audit.findings:
        assert finding.message in html.text


def test_what_they_hold_is_text(run, tmp_path):
    plain = json.loads(run.evaluation().to_json())
    plain["classes"][0] = plain["per_class"][0]["name"] = NASTY
    plain["confusion"] = [[0, 8, 0], [8, 0, 0], [0, 0, 8]]
    odd = Evaluation.from_json(json.dumps(plain))
    html = Html(odd._repr_html_())
    assert html.tags <= PLAIN
    assert "<img src=x onerror=alert(1)>&\\x1b[31m" in html.text
    folder = tmp_path / NASTY
    nasty = untrained(folder, source=f"/{NASTY}")
    info = {**nasty.info, "device": NASTY, "status": NASTY}
    html = Html(Run(folder, nasty.config, info)._repr_html_())
    assert html.tags <= PLAIN
    assert html.text.count("onerror") >= 3


def test_a_damaged_evaluation_does_not_hide_the_run(tmp_path):
    broken = untrained(tmp_path / "run")
    assert "not measured" in broken._repr_html_()
    (broken.folder / "evaluation.json").write_text("{")
    html = Html(broken._repr_html_())
    assert "evaluation.json" in html.text
    assert "finished after 7 steps" in html.text
