"""Pages that fail are seen to fail."""

from __future__ import annotations

import pytest

from browser import open_page


def test_an_error_of_a_page_fails_its_test(tmp_path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>missing()</script>")
    with pytest.raises(AssertionError, match="missing is not defined"), open_page(page.as_uri()):
        pass


def test_a_page_is_seen_in_the_scheme_asked_for(tmp_path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<p>text</p>")
    query = "matchMedia('(prefers-color-scheme: dark)').matches"
    for scheme in ("light", "dark"):
        with open_page(path.as_uri(), scheme=scheme) as page:
            assert page.evaluate(query) == (scheme == "dark")
