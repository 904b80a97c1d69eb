"""What the pages hold: code blocks, commands, links. README.md, the texts beside it, and docs/."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^(?P<ticks>```+)(?P<kind>\{code-cell\}[^\n]*|\S*)\n(?P<text>.*?)^(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
#: A comment in the text of a cell that has options of MyST-NB above its code.
_OPTION = re.compile(r"\A(?::\w+:[^\n]*\n)+\n?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: The page, from the root of the tree.
        line: The line of the fence, from 1.
        kind: "python", "console", "" and so on; "python" also for IPython and cells of a notebook.
        text: What is in it.
        not_run: Why it cannot run in a test, from a comment ``<!-- not run: why -->`` above it.
    """

    page: str
    line: int
    kind: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The texts that people read, from the root of the tree."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, kind: str | None = None) -> list[Block]:
    """The blocks of a page, in order; of one kind."""
    text, found = text_of(page), []
    for match in _FENCE.finditer(text):
        named = match["kind"]
        body = match["text"]
        if named.startswith("{code-cell}") or named == "ipython":
            named, body = "python", _OPTION.sub("", body)
        line = text.count("\n", 0, match.start("ticks")) + 1
        found.append(Block(page, line, named, body, match["reason"]))
    return [block for block in found if kind is None or block.kind == kind]


def commands(page: str) -> Iterator[tuple[str, list[str], bool]]:
    """Where each command of a page is, its words, and whether it is a line of a shell block.

    Text in backquotes counts too.
    """
    for block in blocks(page):
        if block.kind in ("", "console", "bash", "sh"):
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                if block.kind == "console" and not line.startswith("$ "):
                    continue  # what a command printed
                yield from ((f"{page}:{number}", words, True) for words in _words(line))
    prose = _FENCE.sub(lambda match: "\n" * match.group().count("\n"), text_of(page))
    for match in re.finditer(r"`([^`\n]+)`", prose):
        where = f"{page}:{prose.count(chr(10), 0, match.start()) + 1}"
        yield from ((where, words, False) for words in _words(match[1]))


def _words(line: str) -> Iterator[list[str]]:
    """The words of a shell line, without its comment; the columns of a list end at two blanks."""
    line = re.sub(r"(?<=\S) {2,}.*", "", re.sub(r"(^|\s)#.*", "", line.removeprefix("$ "))).strip()
    if not line:
        return
    try:
        words = shlex.split(line)
    except ValueError:  # no shell line: a sentence with an apostrophe
        return
    while words and (words[0] == "nohup" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    if words and words[0] == "python" and words[1:3] == ["-m", "paceline"]:
        words = ["paceline", *words[3:]]
    for end in (">", "|", "<"):
        if end in words:
            words = words[: words.index(end)]
    if words:
        yield words


def headings(page: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and MyST make them."""
    prose = _FENCE.sub("", text_of(page))
    found: set[str] = set()
    for match in re.finditer(r"^#{1,6} (.+)$", prose, re.MULTILINE):
        words = re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words)))
    return found


def links(page: str) -> Iterator[tuple[int, str]]:
    """Line and target of each link and picture of a page."""
    prose = _FENCE.sub(lambda match: "\n" * match.group().count("\n"), text_of(page))
    prose = re.sub(r"`[^`\n]+`(?!\])", lambda match: " " * len(match.group()), prose)
    for match in re.finditer(r"\]\(([^()\s]+)\)", prose):
        yield prose.count("\n", 0, match.start()) + 1, match[1]
