"""Finds what strangers read twice: phrases and long sentences in messages, docstrings and pages.

    python tools/plain_english.py            # checks CLEAN, as `make lint` does
    python tools/plain_english.py PATH ...   # checks other files and folders

A finding is a phrase of PHRASES, or a sentence of more than 25 words. Comments are read as well. A
string counts as a message if it has at least four words. A placeholder such as ``{name}`` is one
word. The words are those of a guide to plain English that the developers follow.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: What is checked without arguments. It only grows.
CLEAN = (
    "src/paceline",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/index.md",
    "docs/tutorials",
    "docs/guides",
    "docs/migrate",
    "docs/reference",
    "docs/explanation",
    "docs/gallery",
    "docs/seeds",
    "examples",
)

#: Words of a sentence, at most.
LONGEST = 25

MESSAGE, DOCSTRING, COMMENT, PAGE = "message", "docstring", "comment", "page"
_ANY = (MESSAGE, DOCSTRING, COMMENT, PAGE)
_READ = (MESSAGE, PAGE)


@dataclass(frozen=True)
class Phrase:
    """A phrase to avoid.

    Attributes:
        pattern: The expression that finds it, in a text whose spaces are single; upper and lower
            case count as equal.
        better: What to write instead.
        kinds: The kinds of text that are searched for it.
    """

    pattern: str
    better: str
    kinds: tuple[str, ...] = _ANY


PHRASES: tuple[Phrase, ...] = (
    # Everywhere.
    Phrase(r"(?<!there )\b(?:is|are) no (?!longer|more|one\b|different)", "is not a; must be"),
    Phrase(r"\b(?:go|goes|going|went) on\b(?! in\b)", "continue, resume, keep"),
    Phrase(r"\b(?:anew|afresh)\b", "again; start over"),
    Phrase(r"\bunder way\b", "running, unfinished"),
    Phrase(r"\b(?:is|are) there already\b|\bwhat is there\b", "exists"),
    Phrase(r"\bwhole numbers?\b", "integer"),
    Phrase(r"\btakes? part\b", "be included"),
    Phrase(r"\bto the bit\b", "bit for bit"),
    Phrase(r"\bup to the order of sums\b", "apart from floating-point rounding"),
    Phrase(r"\bblanks?\b", "spaces"),
    Phrase(r"\bso often\b(?! that\b)|\bso many\b(?! that\b)", "this many, every N"),
    Phrase(r"\bby its share\b", "stratified"),
    Phrase(r"\blearns? from earlier\b", "warm-start from"),
    Phrase(
        r"\bgains? nothing\b|\b(?:does not|does|to) pay\b|\bpays\b", "isn't faster; is worth it"
    ),
    Phrase(r"\bsigns? of life\b", "heartbeat"),
    Phrase(r"\bsearch(?:es)? of (?:a|the|this|that) study\b", "search on a study"),
    Phrase(r"\bsearched last\b", "last used"),
    Phrase(r"\bshall\b", "must, will"),
    Phrase(r"\ball the same\b", "anyway; has no effect"),
    Phrase(r"\bno way back\b", "cannot be undone"),
    Phrase(r"\bcomes? (?:again|out as)\b", "is repeated; gives the same result as"),
    Phrase(r"\bwhat (?:is|are) (?:whole|not)\b", "name the thing: the intact lines"),
    # Where users read. In comments these are idioms that a developer understands.
    Phrase(r"\bbeg[ia]ns? again\b", "start over, restart", _READ),
    Phrase(r"\b(?:trials?|search(?:es)?)(?: that)?(?: has| have)? ended\b", "finished", _READ),
    Phrase(r"\b(?:is|are) gone\b", "is missing, no longer exists", _READ),
    Phrase(r"\blies? in\b", "is stored in", _READ),
    Phrase(
        r"\bof (?:yours|theirs|your own|its own|their own)\b(?! kind)", "your own, its own", _READ
    ),
    Phrase(r"\bbeside\b", "next to, compared with, apart from", _READ),
    Phrase(r"\bby hp\b", "as a function of hp", _READ),
    Phrase(r"(?<!Pareto )(?<!in )(?<!to )\bthe front\b", "the Pareto front", _READ),
    Phrase(r"\blearnt\b", "warm-start from; learned", _READ),
    Phrase(r"\b(?:is|are) said\b", "name who says it: see the errors above", _READ),
    Phrase(
        r"(?:[;:.] |^)give (?!n\b)", "pass an argument, use an option, set a variable", (MESSAGE,)
    ),
    Phrase(
        r"(?:[.;] |^)what (?:[a-z]+[ ,]+){2,}[^?]*(?:\.|$)", "a noun, no what-clause", (MESSAGE,)
    ),
    Phrase(r"\b(?:then|there|so|of it)\.(?= |$)", "a noun at the end of the sentence", _READ),
    Phrase(r"\bwhere (?:there is|there are|it has|none)\b", "if", _READ),
    Phrase(
        r"\b(?:has|have) (?!been\b|to\b|the\b)\w+ (?:run|make|train|compile|follow|write|read)\b",
        "a direct verb: selects, compiles, calls",
        _READ,
    ),
)

#: Part of a path, part of a text -> why its findings stay.
EXCEPTIONS = {
    ("program/rewrites/__init__.py", "``random_bits``"): "a table of names",
    ("remote/payoff.py", "`paceline bench` reads PAYS"): "the name of a constant",
    ("study/", "``afresh``"): "the name of an argument",
}

#: Words without which a string is a list of names, or code, and not a sentence.
_ENGLISH = re.compile(r"\b(?:the|an?|is|are|has|have|must|of|to|in|for|with)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Text:
    """One text: a message, a block of comments, or a paragraph of a docstring or a page."""

    kind: str
    line: int
    words: str


def texts_of(path: Path) -> Iterator[Text]:
    """Every text of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from (Text(PAGE, line, words) for line, words in paragraphs(source.splitlines()))
        return
    tree = ast.parse(source)
    docstrings = list(_docstrings(tree))
    for node in docstrings:
        lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
        lines = [lines[0].replace('r"""', "").replace('"""', ""), *lines[1:]]
        lines[-1] = lines[-1].removesuffix('"""')
        for line, words in paragraphs(lines):
            yield Text(DOCSTRING, node.lineno - 1 + line, words)
    of_docstrings = {id(node) for node in docstrings}
    yield from (
        Text(MESSAGE, node.lineno, words)
        for node, words in _strings(tree)
        if id(node) not in of_docstrings
        and len(re.findall(r"[A-Za-z]{2,}", words)) >= 4
        and _ENGLISH.search(words)
        and "{ --" not in words  # CSS
    )
    yield from _comments(source)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    yield first.value


def _strings(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Every string, with its words on one line; parts of an f-string are not strings of theirs."""
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values
        ]
        yield node, " ".join("".join(parts).split())
        for part in node.values:  # strings within placeholders
            if isinstance(part, ast.FormattedValue):
                yield from _strings(part.value)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node, " ".join(node.value.split())
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def _comments(source: str) -> Iterator[Text]:
    """The comments; lines of comments that follow each other are one text."""
    block: list[str] = []
    start = last = 0  # last: of a line that is a comment alone
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        alone = not token.line[:column].strip()
        if block and not (alone and row == last + 1):
            yield Text(COMMENT, start, " ".join(block))
            block = []
        start = start if block else row
        block.append(token.string.lstrip("#: ").strip())
        last = row if alone else 0
    if block:
        yield Text(COMMENT, start, " ".join(block))


_ITEM = re.compile(r"\s*(?:[-*] |\d+\. )|\s*[\w*`][^:]{0,60}: |\s*\w+:$")


def paragraphs(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The line and words of each paragraph and list item; code and tables are left out."""
    block: list[str] = []
    start = deepest = code = 0
    fenced = False
    # A list in a quotation is a list.
    for number, line in enumerate([*(each.removeprefix("> ") for each in lines), ""], 1):
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if text.startswith("```"):
            fenced = not fenced
            text = ""
        elif code and text and depth <= code - 1:
            code = 0
        skipped = fenced or bool(code) or text.startswith(("|", ">>>", "#", "<"))
        new_item = bool(block) and depth <= deepest and _ITEM.match(line) is not None
        if block and (not text or skipped or new_item):
            yield start, " ".join(block)
            block = []
        if text and not skipped:
            if not block:
                start, deepest = number, depth
            block.append(text)
            if text.endswith(":") and len(block) == 1 and " " not in text:  # a section's head
                yield start, text
                block = []
            if text.endswith("::"):
                code = depth + 1


def sentences(words: str) -> Iterator[str]:
    """The sentences of a text."""
    yield from re.split(r"(?<=[.!?])[\"')\]*]* +", words)


def findings(kind: str, words: str) -> Iterator[str]:
    """What is wrong with a text."""
    plain = re.sub(r"`[^`]*`", "`x`", words)  # code is not English
    for phrase in PHRASES:
        found = re.search(phrase.pattern, plain, re.IGNORECASE)
        if kind in phrase.kinds and found:
            yield f"{found[0].strip(' .;:')!r}; write: {phrase.better}"
    for sentence in sentences(words):
        length = sum(any(letter.isalnum() for letter in word) for word in sentence.split())
        if length > LONGEST:
            yield f"{length} words: {sentence}"


def check(files: Iterable[Path]) -> Iterator[str]:
    """One line for each finding in files."""
    for file in files:
        name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
        for text in texts_of(file):
            if any(part in name and words in text.words for part, words in EXCEPTIONS):
                continue
            for finding in findings(text.kind, text.words):
                yield f"{name}:{text.line}: {text.kind}: {finding}"


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files of paths: Python and Markdown."""
    for path in paths:
        yield from sorted({*path.rglob("*.py"), *path.rglob("*.md")}) if path.is_dir() else [path]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings; 1 if there are any."""
    given = [Path(name).resolve() for name in arguments]
    found = list(check(files_in(given or [ROOT / name for name in CLEAN])))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
