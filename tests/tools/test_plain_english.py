"""The check of plain English: what it reads, and what it finds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = '''"""Reads a study.

Args:
    name: A name.
    n: A whole number.

Example::

    goes on
"""

#: First line of a comment
# that goes on.
LIMIT = 1  # a comment of its own


def f(x):
    raise ValueError(f"study {x!r} is no name; " "give another one")
'''


@pytest.fixture
def plain_english(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("plain_english")


def test_what_is_read_of_a_module(plain_english, tmp_path) -> None:
    path = tmp_path / "a.py"
    path.write_text(CODE, encoding="utf-8")
    found = [(text.kind, text.line, text.words) for text in plain_english.texts_of(path)]
    assert found == [
        ("docstring", 1, "Reads a study."),
        ("docstring", 3, "Args:"),
        ("docstring", 4, "name: A name."),
        ("docstring", 5, "n: A whole number."),
        ("docstring", 7, "Example::"),
        ("message", 18, "study {x} is no name; give another one"),
        ("comment", 12, "First line of a comment that goes on."),
        ("comment", 14, "a comment of its own"),
    ]


def test_what_is_read_of_a_page(plain_english, tmp_path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "# A heading goes on\n\nA text\non two lines.\n- An item\n- Another\n\n"
        "| a table | goes on |\n\n```\ncode goes on\n```\n",
        encoding="utf-8",
    )
    found = [(text.line, text.words) for text in plain_english.texts_of(path)]
    assert found == [(3, "A text on two lines."), (5, "- An item"), (6, "- Another")]


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("message", "batch_sizes: 32 is no list", "'is no'"),
        ("message", "pass x; give the name of a metric", "'give'"),
        ("message", "What others enqueue, fail or prune counts", "'What others"),
        ("message", "the user has Keras run on JAX", "'has Keras run'"),
        ("docstring", "The search goes on.", "'goes on'"),
        ("comment", "Trials under way", "'under way'"),
        ("page", "It is read there.", "'there'"),
        ("comment", " ".join(["word"] * 26) + ". Short.", "26 words: word"),
    ],
)
def test_what_is_found(plain_english, kind: str, words: str, said: str) -> None:
    (finding,) = plain_english.findings(kind, words)
    assert finding.startswith(said)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("message", "there is no study of this name"),
        ("message", "it is no longer in the storage"),
        ("message", "`what is there` is code"),
        ("comment", "a thread of its own"),
        ("page", " ".join(["word"] * 25) + "."),
    ],
)
def test_what_is_plain(plain_english, kind: str, words: str) -> None:
    assert list(plain_english.findings(kind, words)) == []


def test_exceptions_name_texts_that_are_there(plain_english) -> None:
    clean = [plain_english.ROOT / name for name in plain_english.CLEAN]
    files = list(plain_english.files_in(clean))
    for part, words in plain_english.EXCEPTIONS:
        assert any(
            part in path.as_posix() and words.split()[0] in path.read_text(encoding="utf-8")
            for path in files
        ), (part, words)


def test_a_finding_ends_the_command(plain_english, tmp_path, capsys) -> None:
    path = tmp_path / "a.md"
    path.write_text("The search goes on.\n", encoding="utf-8")
    assert plain_english.main([str(path)]) == 1
    assert f"{path}:1: page: 'goes on'; write: continue" in capsys.readouterr().out
    path.write_text("The search continues.\n", encoding="utf-8")
    assert plain_english.main([str(path)]) == 0
