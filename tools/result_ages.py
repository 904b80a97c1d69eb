"""Says which results of benchmarks are older than the last change of what they depend on.

`benchmarks/depends.toml` names the folders of each result, and the result stores the commit that it
was measured at. A page that shows a result names that commit beside it, and says "with changed
files" where files differed from it. Notes in docs/decisions are dated and speak of their own day.
The picture in the README stores its commit in its title. Results of cards (gpu_*.json) are not
judged: a card is not there whenever a release is.

    python tools/result_ages.py    # a line for each result and picture
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Pages that users read; a release waits for the results of the first.
PAGES = (
    "README.md",
    *(f"docs/{folder}*.md" for folder in ("", "tutorials/", "guides/", "migrate/", "reference/")),
    "docs/explanation/*.md",
    "docs/seeds/*.md",
)

_RESULT = re.compile(r"benchmarks/results/([\w-]+)\.json")
_TITLE = re.compile(r"<title>[^<]* at commit ([0-9a-f]{7,40})(\+?)</title>")
_CARD = "gpu_"
_CHANGED = "with changed files"


@dataclass(frozen=True)
class Age:
    """How a result, or a picture of a search, stands to the code of today.

    Attributes:
        file: Its name.
        commit: What it was measured at; it has no ``+``.
        changed: Files differed from the commit while it was measured.
        later: Commits after it that changed what it depends on, the newest first; None if the
            commit is not in this history.
    """

    file: str
    commit: str
    changed: bool
    later: tuple[str, ...] | None

    @property
    def old(self) -> bool:
        """Whether the figures may differ from those of today's code."""
        return self.changed or self.later is None or bool(self.later)

    def __str__(self) -> str:
        at = f"{self.file}, measured at {self.commit}"
        if self.changed:
            at += f", {_CHANGED}"
        if self.later is None:
            return f"{at}, which is not in this history"
        if not self.later:
            return f"{at}: nothing that it depends on has changed since"
        return f"{at}: {len(self.later)} commits since, the last {self.later[0]}"


@dataclass(frozen=True)
class Results:
    """The results of a checkout, and what `benchmarks/depends.toml` says of them.

    Attributes:
        root: The checkout.
        depends: Name of a result -> paths from the root.
        commits: Name -> commit, for results whose own does not count.
        pictures: Path of a picture of a search from the root -> paths that it depends on.
    """

    root: Path
    depends: dict[str, tuple[str, ...]]
    commits: dict[str, str]
    pictures: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, root: Path) -> Results:
        """Reads `benchmarks/depends.toml`.

        Raises:
            SystemExit: A result is not in the file, or the file names one that is not there.
        """
        file = root / "benchmarks" / "depends.toml"
        held = tomllib.loads(file.read_text(encoding="utf-8"))
        rooms = held.get("rooms", {})
        depends, pictures = (
            {
                name: tuple(path for word in words for path in rooms.get(word, [word]))
                for name, words in held.get(table, {}).items()
            }
            for table in ("results", "pictures")
        )
        there = {path.stem for path in (root / "benchmarks" / "results").glob("*.json")}
        there = {name for name in there if not name.startswith(_CARD)}
        if unknown := sorted(there ^ set(depends)):
            sys.exit(
                f"{file}: correct [results] for {', '.join(unknown)}: each file in "
                "benchmarks/results has an entry there, and each entry a file"
            )
        return cls(root, depends, dict(held.get("commits", {})), pictures)

    def measured(self, name: str) -> tuple[str, bool]:
        """The commit of a result, and whether files differed from it.

        Raises:
            SystemExit: The result stores none, and depends.toml has none for it.
        """
        if name in self.commits:
            return self.commits[name], False
        path = self.root / "benchmarks" / "results" / f"{name}.json"
        held = json.loads(path.read_text(encoding="utf-8"))
        commit = held.get("machine", {}).get("commit", "")
        if not re.fullmatch(r"[0-9a-f]{7,40}\+?", commit):
            sys.exit(f"{path} stores no commit: name one in benchmarks/depends.toml, [commits]")
        return commit.rstrip("+"), commit.endswith("+")

    def age(self, name: str) -> Age:
        """Looks into git for what changed since the result was measured."""
        return self._age(f"{name}.json", *self.measured(name), self.depends[name])

    def picture_ages(self) -> list[Age]:
        """The same of the pictures.

        Raises:
            SystemExit: A picture's title has no commit.
        """
        ages = []
        for path, depends in self.pictures.items():
            text = (self.root / path).read_text(encoding="utf-8")
            found = _TITLE.search(text)
            if found is None:
                sys.exit(f"{path}: its title has no commit; python tools/picture.py makes it anew")
            ages.append(self._age(path, found[1], bool(found[2]), depends))
        return ages

    def _age(self, file: str, commit: str, changed: bool, depends: Sequence[str]) -> Age:
        if self._git("merge-base", "--is-ancestor", commit, "HEAD") is None:
            return Age(file, commit, changed, None)
        later = self._git("log", "--format=%h", f"{commit}..HEAD", "--", *depends)
        return Age(file, commit, changed, tuple((later or "").split()))

    def shown(self, *patterns: str) -> set[str]:
        """The results that pages show, other than those of cards."""
        return {name for _, _, name in self._mentions(patterns or PAGES)}

    def unlabelled(self) -> list[str]:
        """Where a page shows a result without its commit; a line for each, with what to write."""
        wrong = []
        for page, block, name in self._mentions(PAGES):
            if name not in self.depends:
                wrong.append(f"{page} names {name}.json, which is not in benchmarks/results")
                continue
            commit, changed = self.measured(name)
            label = f"{commit}, {_CHANGED}" if changed else commit
            if label not in " ".join(block.split()):
                wrong.append(f"{page} shows {name}.json: write beside it that it is of {label}")
        return wrong

    def _mentions(self, patterns: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        """Page, paragraph or row of a table, and the name of a result in it."""
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                page = path.relative_to(self.root).as_posix()
                for block in blocks(path.read_text(encoding="utf-8")):
                    for name in _RESULT.findall(block):
                        if not name.startswith(_CARD):
                            yield page, block, name

    def _git(self, *arguments: str) -> str | None:
        """What git prints; None if it fails."""
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.root, check=False, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None


def blocks(text: str) -> Iterator[str]:
    """The paragraphs of a page, and each row of a table and point of a list by itself."""
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"\n(?=\||- )", paragraph)


def main() -> int:
    """Prints a line for each result, and what is not labelled; returns the exit status."""
    results = Results.read(ROOT)
    readme, shown = results.shown("README.md"), results.shown()
    for name in sorted(results.depends):
        age = results.age(name)
        where = "README" if name in readme else "guides" if name in shown else "decisions"
        print(f"{'old' if age.old else 'ok ':<4} {where:<10} {age}")
    for age in results.picture_ages():
        print(f"{'old' if age.old else 'ok ':<4} {'README':<10} {age}")
    wrong = results.unlabelled()
    print(*wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
