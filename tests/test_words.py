"""Words of the package: one meaning for each class name, and plain English in what people read.

A reader who searches for a class finds one class, because no two classes have the same name. A
sentence names the thing that it speaks of, so that a reader needs no other paragraph to understand
it; the phrases below are those that failed readers of the code.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "paceline"

#: Class names that two files share on purpose -> why.
SHARED_NAMES = {
    "Condition": "KerasTuner's public name, with its messages",
    "HyperParameters": "KerasTuner's public name, with its manners; a subclass",
    "Objective": "KerasTuner's public name; users import both by their packages",
    "Trial": "KerasTuner's public name; users import both by their packages",
    "Tuner": "KerasTuner's public name; users import both by their packages",
}

#: Texts beside the package that are checked.
DOCUMENTS = ("benchmarks", "docs", "README.md", "CONTRIBUTING.md")

# A space within a phrase: also the end of a line, and the mark of a comment on the next one.
_SPACE = r"[\s#:]+"
#: Phrase -> what to write instead, and the expression that finds it.
BANNED = {
    "hang on": ("depends on; a step does not hang", rf"\b(?:hangs?|hung){_SPACE}on\b"),
    "as ever": ("nothing: say what is so", rf"\bas{_SPACE}ever\b"),
    "Theirs.": ("name the owner", r"\btheirs\.(?![\w.])"),
    "Likewise.": ("repeat what is meant", r"\blikewise\."),
    "Of the search.": (
        "a sentence with a noun",
        rf"(?:^|[.:!?\"]\s+)of{_SPACE}the{_SPACE}search\.",
    ),
}


def class_names() -> dict[str, list[str]]:
    """Class name -> the files that define such a class, nested classes included."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def texts() -> Iterator[Path]:
    """All files that are checked for phrases."""
    for entry in (SOURCE, *(ROOT / d for d in DOCUMENTS)):
        assert entry.exists(), f"{entry} has moved: correct the list above"
        if entry.is_dir():
            yield from sorted(p for p in entry.rglob("*") if p.suffix in {".py", ".md"})
        else:
            yield entry


def banned_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and phrase of each banned phrase in a text."""
    for phrase, (_, pattern) in BANNED.items():
        for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE):
            start = match.start() + len(match.group()) - len(match.group().lstrip())
            yield text.count("\n", 0, start) + 1, phrase


def test_no_two_classes_have_one_name():
    double = {name: where for name, where in class_names().items() if len(where) > 1}
    unexpected = {name: where for name, where in double.items() if name not in SHARED_NAMES}
    assert unexpected == {}, "rename one of each: a name has one meaning in the package"
    assert set(SHARED_NAMES) <= set(double), "no longer shared: take it off the list"


def test_sentences_name_what_they_speak_of():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write {BANNED[phrase][0]}"
        for path in texts()
        for line, phrase in banned_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The cost hangs on the shapes.", "hang on"),
        ("# what figures hang\n    # on beside the device", "hang on"),
        ("It hung on a lock.", "hang on"),
        ("Who is alone writes behind, as ever.", "as ever"),
        ("Whose names count? Theirs.", "Theirs."),
        ("        y: Likewise.", "Likewise."),
        ("        n_trials: Of the search.", "Of the search."),
        ("Of the\nsearch.", "Of the search."),
    ],
)
def test_a_banned_phrase_is_found(text, phrase):
    assert [found for _, found in banned_in(text)] == [phrase]


@pytest.mark.parametrize(
    "text",
    [
        "The cost depends on the shapes.",
        "Measured costs of the search.",
        "The line of the search. It ends.",
        "one = theirs.Analyze(scan)",
        "Validation is likewise split.",
        "if phase was ever reached",
        "They change on restart.",
    ],
)
def test_other_text_is_not_banned(text):
    assert list(banned_in(text)) == []
