"""The report as people see it: light and dark, on a laptop and on a phone, with many trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from browser import LAPTOP, PHONE, open_page, wait_until
from paceline.report.html.page import write_report
from subjects import HOSTILE, subject_of, timeline_of

#: Notes tasks that hold up the page for longer than 50 ms, as the browser counts them.
WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) { window.longTasks.push(entry.duration); }
  }).observe({ type: "longtask" });
}"""


def drawn(page) -> None:
    """Scrolls to the end, and waits until all figures are drawn."""
    height = page.evaluate("document.body.scrollHeight")
    for at in range(0, height + 900, 450):
        page.evaluate(f"window.scrollTo(0, {at})")
        page.wait_for_timeout(100)
    wait_until(
        page, "[...document.querySelectorAll('.figure')].every(e => e.querySelector('.main-svg'))"
    )


@pytest.mark.parametrize("width", [PHONE, LAPTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_readable(tmp_path, width, scheme) -> None:
    path = tmp_path / "report.html"
    write_report(path, subject_of(60, failed=3), subject_of(40, name="other", optimum=1e-3))
    with open_page(path.as_uri(), width, scheme) as page:
        drawn(page)
        assert page.locator(".figure").count() >= 8
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(13, 17, 23)") == (scheme == "dark")
        ticks = page.locator("#history + .figure .xtick text").first
        fill = ticks.evaluate("e => getComputedStyle(e).fill")
        assert fill == ("rgb(230, 237, 243)" if scheme == "dark" else "rgb(27, 31, 36)")
        page.evaluate("window.scrollTo(0, 0)")
        page.screenshot(path=str(tmp_path / "report.png"), full_page=True)


#: Pairs of what lies on something else: axis titles, legends, tool bars and the points' areas.
OVERLAPS = """() => [...document.querySelectorAll('.figure')].flatMap(figure => {
  const titles = '[class^=g-x][class$=title], [class^=g-y][class$=title]';
  const named = ['.legend', titles, '.modebar', '.nsewdrag', '.ytick text']
    .flatMap(name => [...figure.querySelectorAll(name)].map(e => [name, e.getBoundingClientRect()]))
    .filter(([, box]) => box.width > 0 && box.height > 0);
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  return named.flatMap(([one, a], i) => named.slice(i + 1)
    .filter(([, b]) => over(a, b)).map(([two]) => [figure.dataset.figure, one, two].join(' ')));
})"""


@pytest.mark.parametrize("width", [PHONE, 800, 1600])
def test_nothing_of_a_figure_lies_on_something_else(tmp_path, width) -> None:
    path = tmp_path / "report.html"
    subject = subject_of(40, failed=3)
    subject.trials.directions = ("maximize", "minimize", "minimize")
    for i, trial in enumerate(subject.trials):
        trial.values = [trial.value, i % 7, 100.0 * i] if trial.value is not None else []
    wide = replace(subject, timelines=[timeline_of(900, 10, slots=64)])
    write_report(path, wide, subject_of(20, name="other"))
    with open_page(path.as_uri(), width) as page:
        drawn(page)
        assert page.locator(".figure .legend").count() >= 3
        assert (page.locator(".figure .modebar").count() > 0) == (width > PHONE)
        assert page.evaluate(OVERLAPS) == []


def test_no_figure_is_white_in_the_dark(tmp_path) -> None:
    path = tmp_path / "report.html"
    write_report(path, subject_of(40))
    with open_page(path.as_uri(), scheme="dark") as page:
        drawn(page)
        fills = page.evaluate(
            "[...document.querySelectorAll('.figure .main-svg, .figure .bg')]"
            ".map(e => getComputedStyle(e)).flatMap(s => [s.backgroundColor, s.fill])"
        )
        assert fills
        assert not {"rgb(255, 255, 255)"} & set(fills)
        axes = page.locator("#parallel + .figure .axis-title").count()
        assert axes == 4


def test_names_that_are_html_run_nothing(tmp_path) -> None:
    path = tmp_path / "report.html"
    hostile = subject_of(40, mark=HOSTILE, name="study" + HOSTILE, failed=2)
    write_report(path, hostile, subject_of(20, mark=HOSTILE, name="other" + HOSTILE))
    with open_page(path.as_uri()) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        drawn(page)
        assert "hacked" not in page.evaluate("document.title").split("</script>")[0]
        assert page.locator("img").count() == 0
        assert page.evaluate("document.scripts.length") == page.evaluate(
            "document.head.querySelectorAll('script').length"
        )
        assert HOSTILE in page.locator("#best ~ .two").first.inner_text()
        page.screenshot(path=str(tmp_path / "hostile.png"), full_page=True)


def test_the_colours_follow_the_browser(tmp_path) -> None:
    path = tmp_path / "report.html"
    write_report(path, subject_of(30))
    with open_page(path.as_uri()) as page:
        drawn(page)
        page.emulate_media(color_scheme="dark")
        wait_until(
            page,
            "getComputedStyle(document.querySelector('#history + .figure .xtick text')).fill "
            "=== 'rgb(230, 237, 243)'",
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """The report of 5,000 trials."""
    path = tmp_path_factory.mktemp("large") / "report.html"
    write_report(path, subject_of(5000, epochs=30))
    return path


@pytest.mark.slow
def test_five_thousand_trials_fit_into_twelve_megabytes(large) -> None:
    assert large.stat().st_size <= 12_000_000


def test_five_thousand_trials_scroll_smoothly(large) -> None:
    with open_page(large.as_uri()) as page:
        page.wait_for_load_state("load")
        # What is in sight is drawn, and what needs WebGL.
        wait_until(page, "document.querySelector('#parallel + .figure .main-svg') !== null")
        wait_until(page, "document.querySelector('#history + .figure .main-svg') !== null")
        page.wait_for_timeout(500)
        page.evaluate(WATCH)
        drawn(page)
        tasks = page.evaluate("window.longTasks")
        assert max(tasks, default=0) <= 200, sorted(map(round, tasks))
