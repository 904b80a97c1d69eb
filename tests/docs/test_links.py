"""Links between the pages, and to files of the tree, lead somewhere."""

from __future__ import annotations

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
    assert "guides/searching.md#when-a-search-ends" in {
        target.removeprefix("docs/") for _, target in links("README.md")
    }
    assert "when-a-search-ends" in headings("docs/guides/searching.md")
    assert "no-such-heading" not in headings("docs/guides/searching.md")


def test_every_page_of_docs_is_on_the_site():
    """Sphinx warns of a page that no list names; this says so without Sphinx."""
    import re

    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?:[\w./-]+ <)?([\w./-]+)>?$", index, re.MULTILINE))
    here = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if "docs/" in page}
    here -= {name for name in here if name.startswith("decisions/")} - {"decisions/README"}
    assert here - listed == {"index"}
