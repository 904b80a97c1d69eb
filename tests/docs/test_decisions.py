"""Each note on a decision begins with a paragraph that a stranger understands."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTES = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.fixture
def plain_english(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("plain_english")


def test_a_note_begins_with_the_choice_what_users_see_and_the_price(plain_english) -> None:
    for note in NOTES:
        head = note.read_text(encoding="utf-8").partition("\n## ")[0]
        title, date, *first = re.split(r"\n\n", head.strip())
        assert title.startswith(f"# {note.name[:4]}: ") and date.startswith("Date: "), note.name
        assert len(first) == 1, f"{note.name}: one paragraph before the first heading"
        words = " ".join(first[0].split())
        assert 2 <= len(list(plain_english.sentences(words))) <= 4, note.name
        assert list(plain_english.findings(plain_english.PAGE, words)) == [], note.name
