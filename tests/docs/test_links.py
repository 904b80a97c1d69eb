"""Links between the pages, to files of the tree and from old addresses lead somewhere."""

from __future__ import annotations

import importlib

import pytest

from pages import ROOT, headings, links, pages

PAGES = pages()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    broken = []
    for line, target in links(page):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists():
            broken.append(f"{page}:{line}: {target}: there is no such file")
        elif anchor and anchor not in headings(str(file.resolve().relative_to(ROOT))):
            broken.append(f"{page}:{line}: {target}: there is no such heading")
        elif not file.resolve().is_relative_to(ROOT):
            broken.append(f"{page}:{line}: {target}: outside of the tree")
    assert broken == []


def test_links_are_found():
    assert "explanation/speed.md#on-a-gpu" in {
        target.removeprefix("docs/") for _, target in links("README.md")
    }
    assert "on-a-gpu" in headings("docs/explanation/speed.md")
    assert "no-such-heading" not in headings("docs/explanation/speed.md")


def test_every_page_of_docs_is_on_the_site():
    """Sphinx warns of a page that no list names; this says so without Sphinx."""
    import re

    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?:[\w ./-]+ <)?([\w./-]+)>?$", index, re.MULTILINE))
    here = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if "docs/" in page}
    here -= {name for name in here if name.startswith("decisions/")} - {"decisions/README"}
    assert here - listed == {"index"}


def test_old_addresses_lead_to_pages_and_places_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    redirects = importlib.import_module("redirects")
    targets = [*redirects.MOVED.values()]
    targets += [to for places in redirects.PLACES.values() for to in places.values()]
    for target in targets:
        page, _, place = target.partition("#")
        assert (ROOT / "docs" / f"{page}.md").is_file(), target
        assert not place or place in headings(f"docs/{page}.md"), target
    old = {*redirects.MOVED, *redirects.PLACES}
    assert old == set(redirects.MOVED)
    assert [page for page in old if (ROOT / "docs" / f"{page}.md").exists()] == []
