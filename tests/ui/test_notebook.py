"""A notebook as people see it: converted to a page, light and dark, wide and on a phone."""

from __future__ import annotations

import re

import pytest

import notebooks
from browser import LAPTOP, PHONE, open_page

SEARCH = "tuner = tuner_of('book')\ntuner.search(x, y, n_trials=4, **toys.CALL)"

#: Contrast of the text in ``.paceline`` with what is behind it, as WCAG counts it.
CONTRAST = """e => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  let behind = e, back = [0, 0, 0, 0];
  while (behind && back[3] === 0) {
    const c = rgb(getComputedStyle(behind).backgroundColor);
    back = c.length === 3 ? [...c, 1] : c;
    behind = behind.parentElement;
  }
  const light = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(back)].sort((p, q) => q - p);
  return (a + 0.05) / (b + 0.05);
}"""

#: Whether all images show something.
DRAWN = "[...document.images].every(image => image.complete && image.naturalWidth > 0)"

FIGURES = ("history", "importances", "parallel", "slice", "curves", "slots")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    pytest.importorskip("nbconvert")
    cells = (SEARCH, "tuner", "tuner.trial(2)", "tuner.history(2)", "tuner.best_hparams")
    return notebooks.execute(tmp_path_factory.mktemp("book"), *cells)


@pytest.mark.parametrize("width", [PHONE, LAPTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_saved_notebook_is_readable(book, tmp_path, width, scheme) -> None:
    from nbconvert import HTMLExporter

    page_text, _ = HTMLExporter(theme=scheme).from_notebook_node(book)
    path = tmp_path / "book.html"
    # The page asks the network for MathJax and RequireJS, which a test has none for.
    lines = [line for line in page_text.splitlines() if "<script src=" not in line]
    path.write_text("\n".join(lines))
    with open_page(path.as_uri(), width, scheme) as page:
        shown = page.locator(".paceline")
        assert shown.count() == 5
        for i in range(5):
            assert shown.nth(i).is_visible()
            assert shown.nth(i).evaluate(CONTRAST) > 7
        assert "4 of 4 trials" in shown.first.inner_text()
        assert page.locator(".paceline img.curve").first.is_visible()
        assert page.evaluate(DRAWN)
        assert shown.first.locator("tbody tr").count() == 4
        page.screenshot(path=str(tmp_path / "book.png"), full_page=True)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    pytest.importorskip("nbconvert")
    cells = [f"tuner.plot.{name}()" for name in FIGURES]
    return notebooks.execute(tmp_path_factory.mktemp("figures"), SEARCH, *cells)


@pytest.mark.parametrize("scripts", [True, False], ids=["", "without scripts"])
def test_figures_of_a_saved_notebook_are_seen_without_a_network(figures, tmp_path, scripts) -> None:
    from nbconvert import HTMLExporter

    for cell in figures.cells[2:]:
        (output,) = cell.outputs
        assert "application/vnd.plotly.v1+json" in output.data  # what JupyterLab draws
        assert "<script" not in output.data["text/html"]
    page_text, _ = HTMLExporter().from_notebook_node(figures)
    lines = [line for line in page_text.splitlines() if "<script src=" not in line]
    text = "\n".join(lines)
    if not scripts:
        text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    path = tmp_path / "figures.html"
    path.write_text(text)
    with open_page(path.as_uri()) as page:
        shown = page.locator("img[alt]:not(.curve)")
        assert shown.count() == len(FIGURES)
        assert page.evaluate(DRAWN)
        assert all(shown.nth(i).bounding_box()["height"] > 300 for i in range(len(FIGURES)))
        page.screenshot(path=str(tmp_path / "figures.png"), full_page=True)
