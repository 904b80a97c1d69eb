"""The report of a study as a page: its parts, its size, and names that are HTML."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from html.parser import HTMLParser

import pytest
from optuna.distributions import FloatDistribution

from paceline.report.formats import kind_of
from paceline.report.html import figures as figures_module
from paceline.report.html.figures import figures_of, shown_trials, to_json
from paceline.report.html.importance import importances_of
from paceline.report.html.page import report_page
from paceline.report.plots import history_figure
from subjects import HOSTILE, cut_short, optuna_subject, subject_of


class Page(HTMLParser):
    """The tags, headings and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        self.open = self.open[: -1 - self.open[::-1].index(tag)] if tag in self.open else self.open

    def handle_data(self, data) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def ids(self) -> list[str]:
        return [a["id"] or "" for tag, a in self.tags if tag in ("h2", "h1") and "id" in a]


def test_a_page_has_all_its_parts() -> None:
    page = Page(report_page(subject_of(60, failed=3)))
    assert page.ids == [
        *("verdict", "best", "history", "importances", "parallel", "slices", "curves", "slots"),
        *("trials", "failures", "programs", "time", "manifest"),
    ]
    for said in ("60 complete, 3 failed", "ab12cd", "compiling", "git commit", "lr", "Predicted"):
        assert said in page.text


def test_a_study_without_trials_or_a_record_has_a_page() -> None:
    page = Page(report_page(subject_of(0)))
    assert "no trials yet" in page.text
    assert "no record of where" in page.text
    assert not [tag for tag, _ in page.tags if tag == "script"]


def test_a_study_without_epochs_has_a_page_that_tells_of_none() -> None:
    lr = {"lr": FloatDistribution(0.0, 1.0)}
    subject = optuna_subject(*((number / 10, lr, {"lr": number / 10}) for number in range(10)))
    text = re.sub(r"\s+", " ", Page(report_page(subject)).text)
    assert "9 0.9000 - 0.9 - 8 0.8000 - 0.8 -" in text  # trial, value, epoch, lr, seconds
    for nonsense in ("None of 0", "0 epochs", "epoch 0", "0.00 s"):
        assert nonsense not in text


def test_nothing_is_loaded_from_anywhere() -> None:
    page = Page(report_page(subject_of(10)))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert not {"src", "href", "action", "onload", "onerror"} & set(attributes)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("n", [4, 60])
def test_names_that_are_html_stay_text(n) -> None:
    subject = subject_of(n, mark=HOSTILE, name="study" + HOSTILE, failed=2)
    text = report_page(subject, subject_of(n, mark=HOSTILE, name="other" + HOSTILE))
    page, plain = Page(text), Page(report_page(subject_of(n, failed=2), subject_of(n, name="o")))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert HOSTILE in page.text


def test_the_top_says_what_the_study_has_learnt_from_others() -> None:
    subject = subject_of(4)
    learnt = [{"study": f"before{HOSTILE}", "kinds": {}, "trials": [[0.5, {}]] * 12}, 7, {}]
    subject = dataclasses.replace(subject, meta={**subject.meta, "learnt": learnt})
    page = Page(report_page(subject))
    assert [t for t in page.texts if "Warm-started" in t] == [
        f"Warm-started from 12 trials of study {'before' + HOSTILE!r}."
    ]
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_json_ends_no_script_element() -> None:
    text = to_json({"a": "</script><!--", "b": "\u2028&\u2029", "c": float("nan"), "d": 1 / 3})
    assert not re.search("[<>&\u2028\u2029]", text)
    found = json.loads(text)
    assert found == {"a": "</script><!--", "b": "\u2028&\u2029", "c": None, "d": 0.333333}


def test_labels_of_figures_are_escaped_for_plotly() -> None:
    subject = subject_of(12, mark="<b>&")
    for figure in figures_of(subject, importances_of(subject)):
        for found in _strings(json.loads(figure.json)):
            assert "<b>" not in found, figure.name
            if not found.endswith("..."):  # Optuna shortens labels
                assert not re.search(r"&(?!lt;|gt;|amp;|quot;|#x27;)", found), (figure.name, found)


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


@pytest.mark.slow
def test_five_hundred_trials_have_a_page_of_at_most_seven_megabytes() -> None:
    assert len(report_page(subject_of(500, epochs=50)).encode()) <= 7_000_000


@pytest.mark.slow
def test_of_many_trials_the_best_are_shown_and_it_is_said(monkeypatch) -> None:
    monkeypatch.setattr(figures_module, "MOST_POINTS", 50)
    monkeypatch.setattr(figures_module, "_BEST", 20)
    subject = subject_of(240)
    shown = shown_trials(subject)
    assert len(shown) == 50
    assert {trial.number for trial in subject.ranked[:20]} <= shown
    figures = {f.name: f for f in figures_of(subject, importances_of(subject))}
    assert "50 of the 240 trials are shown: the best 20" in figures["history"].note
    assert "the best 50 of 240 trials, and bands" in figures["curves"].note
    (points, steps) = json.loads(figures["history"].json)["data"]
    assert len(points["x"]) == 50
    assert max(steps["y"]) == float(f"{subject.ranked[0].value:.6g}")
    (slices,) = json.loads(figures["slice0"].json)["data"]
    assert set(slices["marker"]["color"]) <= {t.number for t in subject.trials}
    assert max(slices["marker"]["color"]) > 50


def test_the_best_value_until_then_counts_trials_that_are_not_shown() -> None:
    subject = subject_of(100)
    (points, steps) = history_figure([subject], [{99}]).data
    assert list(points.x) == [99]
    best, expected = -1.0, []
    for trial in subject.trials:
        assert trial.value is not None
        if trial.value > best:
            best = trial.value
            expected.append(trial.number)
    assert list(steps.x) == [*expected, 99]


def test_trials_that_were_stopped_are_drawn_lighter_and_marked() -> None:
    subject = cut_short(subject_of(60), 2, but=3)
    figures = {f.name: f for f in figures_of(subject, importances_of(subject))}
    data = {name: json.loads(figure.json)["data"] for name, figure in figures.items()}
    for name in ("history", "slice0", "slice1", "slice2"):
        whole, cut = data[name][:2]
        assert (len(whole["x"]), len(cut["x"])) == (3, 57)
        assert cut["marker"]["symbol"] == "circle-open"
        assert cut["marker"]["opacity"] < whole["marker"]["opacity"]
    assert "epoch 2 of 2, stopped early" in "".join(data["history"][1]["text"])
    (lines,) = data["parallel"]
    colours = lines["line"]["color"]
    assert len(colours) == 60
    assert sum(colour > 0.5 for colour in colours) == 3
    assert colours == sorted(colours)  # those that trained to their end lie on top
    assert {trace["opacity"] for trace in data["curves"]} == {1.0, 0.5}
    said = "are trials that were stopped early or are unfinished, with their best epochs"
    assert f"Grey lines {said}" in figures["parallel"].note
    assert f"Rings {said}" in figures["slice0"].note
    assert f"Paler lines {said}" in figures["curves"].note
    assert "compared with what others reached" in figures["importances"].note


def test_without_any_complete_trial_there_are_figures() -> None:
    page = Page(report_page(cut_short(subject_of(12), 2, but=0)))
    assert page.ids[:6] == ["verdict", "best", "history", "importances", "parallel", "slices"]


def test_a_study_of_stopped_trials_is_put_beside_another() -> None:
    page = Page(report_page(cut_short(subject_of(12), 2, but=0), subject_of(30, name="other")))
    assert "Values are compared only for" not in page.text


def test_initial_configurations_that_were_stopped_have_a_place() -> None:
    subject = cut_short(subject_of(12), 2, but=3)
    pruned = next(trial for trial in subject.reached if trial.state == "pruned")
    pruned.enqueued = True
    place = 1 + subject.reached.index(pruned)
    assert f"{place} of 12, stopped early" in Page(report_page(subject)).text


def test_failures_for_one_reason_are_one_row() -> None:
    assert kind_of("ValueError: width 12 is 3.5e-2") == kind_of("ValueError: width 7 is -0.1")
    assert kind_of("loss is nan in epoch 3, with {'lr': 0.1}") == "loss is nan in epoch #"
    text = Page(report_page(subject_of(5, failed=4))).text
    assert text.count("is too large") == 1


def test_two_studies_side_by_side_show_what_differs() -> None:
    other = subject_of(30, name="other", optimum=1e-3)
    other.meta["sampler"] = "tpe"  # type: ignore[index]
    page = Page(report_page(subject_of(30), other))
    assert "compare" in page.ids
    text = page.text
    assert "Differences in setup" in text
    assert re.search(r"sampler\s+random\s+tpe", re.sub(r"\s+", " ", text))


def test_studies_of_other_objectives_are_not_drawn_together() -> None:
    page = Page(report_page(subject_of(30), subject_of(30, name="other", mark="2")))
    assert "Values are compared only for an objective that both have" in html.unescape(page.text)
