"""The documentation site as people see it: every page, light and dark, on a phone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from browser import PHONE, open_page
from pages import ROOT

SITE = ROOT / "site" / "html"

#: What is wrong with a page: it is wider than its window, not in the scheme asked for, or a picture
#: of it is not there.
DEFECTS = """([width, scheme]) => [
  ...(document.documentElement.scrollWidth > width
    ? ['wide: ' + document.documentElement.scrollWidth] : []),
  ...(document.documentElement.dataset.theme !== scheme
    ? ['theme: ' + document.documentElement.dataset.theme] : []),
  ...[...document.images].filter(e => e.naturalWidth === 0).map(e => 'no picture: ' + e.src),
]"""


def site_pages() -> list[Path]:
    """The pages of the site, but for those that only lead on: index.html and old addresses."""
    found = [*SITE.glob("*.html"), *(SITE / "docs").rglob("*.html")]
    sys.path.append(str(ROOT / "docs" / "_ext"))
    moved = {SITE / "docs" / f"{old}.html" for old in importlib.import_module("redirects").MOVED}
    return sorted({*found} - moved - {SITE / "index.html"})


def defects(page, path: Path, scheme: str) -> list[str]:
    page.goto(path.as_uri())
    found = page.evaluate(DEFECTS, [PHONE, scheme])
    return [f"{path.relative_to(SITE)}: {each}" for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_site_fits_a_phone_and_logs_no_error(scheme) -> None:
    if not SITE.is_dir():
        pytest.skip("no site here: `make docs` builds it")
    with open_page((SITE / "docs" / "index.html").as_uri(), PHONE, scheme) as page:
        found = [each for path in site_pages() for each in defects(page, path, scheme)]
    assert not found, "\n".join(found)


#: Lines of Python that are wider than their place.
SCROLLED = """[...document.querySelectorAll('.highlight-python pre, .highlight-ipython3 pre')]
  .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.split('\\n')
    .reduce((a, b) => a.length < b.length ? b : a))"""


def test_no_line_of_python_scrolls_on_a_laptop() -> None:
    if not SITE.is_dir():
        pytest.skip("no site here: `make docs` builds it")
    found = []
    with open_page((SITE / "docs" / "index.html").as_uri(), 1440) as page:
        for path in site_pages():
            page.goto(path.as_uri())
            found += [
                f"{path.stem}: {line}" for line in page.evaluate(SCROLLED) if len(line) <= 100
            ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_front_door_leads_to_a_page_whose_navigation_names_the_others(scheme) -> None:
    if not SITE.is_dir():
        pytest.skip("no site here: `make docs` builds it")
    with open_page((SITE / "index.html").as_uri(), scheme=scheme) as page:
        page.wait_for_url("**/docs/index.html")
        named = page.evaluate(
            "[...document.querySelectorAll('.bd-sidebar-primary a.internal')].map(e => e.href)"
        )
    unseen = {path.as_uri() for path in site_pages()} - {each.split("#")[0] for each in named}
    assert {Path(each).stem for each in unseen} <= {"index", "genindex", "search", "py-modindex"}


def test_an_old_address_leads_on_also_to_its_place() -> None:
    if not SITE.is_dir():
        pytest.skip("no site here: `make docs` builds it")
    old = (SITE / "docs" / "guides" / "searching.html").as_uri()
    with open_page(old) as page:
        page.wait_for_url("**/docs/guides/search_space.html")
        page.goto(f"{old}#when-a-search-ends")
        page.wait_for_url("**/docs/guides/budgets.html")
