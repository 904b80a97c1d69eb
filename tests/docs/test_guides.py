"""A guide begins with what its reader gains, then has code, and its title is a task."""

from __future__ import annotations

import re

import pytest

from pages import headings, links, pages, text_of

GUIDES = [page for page in pages() if page.startswith("docs/guides/")]
MIGRATE = [page for page in pages() if page.startswith("docs/migrate/")]
#: First words of titles: what a reader wants to do.
VERBS = {
    *("Change", "Choose", "Define", "End", "Export", "Find", "Handle", "Inspect", "Load", "Log"),
    *("Read", "Repeat", "Resume", "Rule", "Search", "Set", "Start", "Stop", "Store", "Use"),
}


@pytest.mark.parametrize("page", GUIDES)
def test_the_title_of_a_guide_is_a_task(page):
    (title,) = re.findall(r"\A# (.+)", text_of(page))
    assert title.split()[0] in VERBS


@pytest.mark.parametrize("page", [*GUIDES, *MIGRATE])
def test_a_short_text_and_then_code_or_a_choice_begin_a_guide(page):
    text = text_of(page).partition("\n")[2]
    begin = re.match(r"\s*(.+?)\n\n.*?(?=^```|^\||^## )", text, re.DOTALL | re.MULTILINE)
    assert begin is not None, "a paragraph, then code or a table"
    assert len(begin[1].split()) <= 60
    assert re.match(r"(## .+\n\n)?(```|\|)", text[begin.end() :])


def test_each_page_is_reached_from_another_one():
    """The sidebar has all pages; who reads on a code host has the links."""
    linked = {
        target.partition("#")[0].rpartition("/")[2] for page in pages() for _, target in links(page)
    }
    sorts = ("docs/guides/", "docs/migrate/", "docs/reference/", "docs/explanation/")
    names = {page.rpartition("/")[2] for page in pages() if page.startswith(sorts)}
    assert names - linked == set()
    assert all(headings(page) for page in pages() if page.startswith(sorts))
