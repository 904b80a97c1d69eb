"""The gallery's pages show the code, the numbers and the figures of their studies."""

from __future__ import annotations

import importlib
import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from measured import result
from pages import ROOT, blocks, links, text_of

STUDIES = ["attention", "co2", "diamonds", "digits", "fashion_mnist", "sentences"]


@pytest.fixture
def gallery(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gallery_pages")


def test_each_study_has_a_file_a_page_and_a_result(gallery, benchmark_module) -> None:
    assert sorted(gallery.STUDIES) == STUDIES
    assert sorted(benchmark_module("gallery").STUDIES) == STUDIES
    assert sorted(result("gallery")["entries"]) == STUDIES
    for folder, ending in (("examples/gallery", "py"), ("docs/gallery", "md")):
        found = {path.stem for path in (ROOT / folder).glob(f"*.{ending}")}
        assert found - {"README"} == set(STUDIES)


@pytest.mark.parametrize("page", [*STUDIES, "README"])
def test_the_numbers_of_a_page_are_those_of_the_result(gallery, page) -> None:
    text, report = text_of(f"docs/gallery/{page}.md"), result("gallery")
    assert gallery.rewritten(page, text, report) == text, (
        "run: python tools/gallery_pages.py --pages"
    )
    other = json.loads(json.dumps(report))
    for entry in other["entries"].values():
        entry["seconds"] *= 2
        entry["best"]["value"] += 1
    assert gallery.rewritten(page, text, other) != text


@pytest.mark.parametrize("page", STUDIES)
def test_the_code_of_a_page_is_in_its_file(page) -> None:
    (block,) = blocks(f"docs/gallery/{page}.md", "python")
    source = (ROOT / "examples" / "gallery" / f"{page}.py").read_text(encoding="utf-8")
    for function in block.text.strip().split("\n\n\n"):
        assert function in source


@pytest.mark.parametrize("study", STUDIES)
def test_a_picture_is_that_of_its_result_and_loads_nothing(
    gallery, benchmark_module, study
) -> None:
    shown = {target.rpartition("/")[2] for _, target in links(f"docs/gallery/{study}.md")}
    for figure in benchmark_module("gallery").STUDIES[study]:
        path = gallery.PICTURES / f"{study}_{figure}.svg"
        assert path.name in shown
        text = path.read_text(encoding="utf-8")
        tree = ElementTree.fromstring(text)
        title = tree.find("{http://www.w3.org/2000/svg}title")
        assert title is not None and title.text == gallery.title(study, result("gallery"))
        assert len(text) < 100_000
        assert "prefers-color-scheme: dark" in text and "var(--ink)" in text
        assert (
            re.findall(r"""(?:href|src)=["'](?!#|data:)|url\(["']?(?!["'#])|<script""", text) == []
        )


def test_a_picture_is_made_small_without_its_text_being_changed(gallery) -> None:
    made = (
        '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg"><defs id="defs-abc123"/>'
        '<g class="a"><g class="b"/></g><g class="kept"><text x="1.2345" data-unformatted="0.9625" '
        'style="fill: rgb(36, 41, 47); fill-opacity: 1;">0.9625</text></g></svg>'
    )
    small = gallery.small(made, "name", "A & B")
    assert "<title>A &amp; B</title>" in small
    assert '<text x="1.2" style="fill: var(--ink);">0.9625</text>' in small
    assert "abc123" not in small and 'class="a"' not in small and 'class="kept"' in small
    ElementTree.fromstring(small)


def test_what_fit_would_take_counts_a_start_for_each_trial(benchmark_module) -> None:
    taken = [{"epochs": [7.0, 1.0, 1.0]}, {"epochs": [5.0, 1.0]}]
    found = benchmark_module("gallery").estimate(taken, n_trials=10, n_epochs=40)
    assert found["start"] == pytest.approx(5.0)
    assert found["epoch"] == pytest.approx(1.0)
    assert found["seconds"] == pytest.approx(15.0)
    assert found["estimate"] == pytest.approx(10 * 5 + 40)


def test_a_verdict_is_read_from_a_report(benchmark_module) -> None:
    page = (
        '<h2 id="verdict">Verdict</h2><div class="verdict">\n<p>Trial 1 &lt; 2.</p>\n'
        "<p>What to try next:</p>\n<ul><li>More.</li></ul>\n</div><p>Other.</p>"
    )
    found = benchmark_module("gallery").verdict(page)
    assert found == {"found": ["Trial 1 < 2."], "following": ["More."]}


def best(study: str) -> list[dict[str, Any]]:
    """The trials of a study, the best ones first."""
    sign = 1 if study in ("diamonds", "co2") else -1
    trials = result("gallery")["entries"][study]["trials"]
    return sorted(trials, key=lambda trial: sign * trial["value"])


def values(study: str, name: str, n: int) -> list[Any]:
    """A hyperparameter of the best n trials."""
    return [trial["hparams"][name] for trial in best(study)[:n]]


def test_what_the_pages_say_was_learned_is_true_of_the_results() -> None:
    """Where this fails after a new run, the section "What you can learn" needs other sentences."""
    assert values("digits", "layers", 5) == [1] * 5
    assert values("digits", "units_0", 5) == [64] * 5
    epochs = sorted(trial["epochs"] for trial in best("fashion_mnist"))
    assert epochs == [1] * 12 + [3] * 4 + [9] * 2
    assert values("fashion_mnist", "normalize", 1) == [True]
    assert values("sentences", "units", 3)[1:] == [16, 16]
    assert 4 not in values("sentences", "units", 6)
    assert min(values("sentences", "lr", 3)) > 0.01
    assert values("diamonds", "layers", 8) == [1] * 8
    assert set(values("diamonds", "embedding", 5)) == {1, 2, 4}
    assert values("co2", "look_back", 7) == [104] * 7
    assert values("co2", "model", 7) == ["hidden"] + ["linear"] * 6
    assert values("attention", "attention", 6) == [True] * 5 + [False]
    assert values("attention", "units", 6).count(32) == 3
