"""What a release still waits for: `make release-check`.

The version is the newest section of CHANGELOG.md. What a program can look at is looked at: a clean
tree, texts, numbers, tags, the files to upload, and the ages of the results and the picture that
the README shows. What only people or hours can do is listed at the end. The exit status is 0 when
nothing waits.

    python tools/release_check.py              # everything; builds into dist/
    python tools/release_check.py --no-build   # all but the build
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dist_contents
import fresh_install
from result_ages import Results
from test_all import SUITES

ROOT = Path(__file__).resolve().parents[1]

#: Texts that a release has.
TEXTS = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "docs/reference/versions.md",
    ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/ISSUE_TEMPLATE/feature.yml",
    ".github/ISSUE_TEMPLATE/question.yml",
)

_SECTION = re.compile(r"^## \[(\d+\.\d+\.\d+\S*)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One line of the list: what was looked at, and whether the release waits for it."""

    waits: bool
    text: str

    def __str__(self) -> str:
        return f"{'WAITS' if self.waits else 'ok':<6} {self.text}"


@dataclass(frozen=True)
class Release:
    """The release that CHANGELOG.md has on top.

    Attributes:
        version: "0.1.0", for instance.
        date: As in CHANGELOG.md, YYYY-MM-DD.
        unreleased: What stands under [Unreleased]; it has to be empty.
    """

    version: str
    date: str
    unreleased: str

    @classmethod
    def read(cls, changelog: str) -> Release:
        """Takes the newest section of a changelog.

        Raises:
            SystemExit: It has none.
        """
        found = _SECTION.search(changelog)
        if found is None:
            sys.exit("CHANGELOG.md has no release; write a section: ## [0.1.0] - 2026-11-25")
        above = changelog[: found.start()].partition("## [Unreleased]")[2]
        return cls(found[1], found[2], above.strip())


def git(root: Path, *arguments: str) -> str:
    """What git prints, without the last end of a line; "" if it fails."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""


def texts(root: Path, release: Release) -> Iterator[Finding]:
    """CHANGELOG.md, CITATION.cff, and the texts that have to be there."""
    if release.unreleased:
        yield Finding(True, "CHANGELOG.md: lines under [Unreleased]; move them into the release")
    else:
        yield Finding(False, f"CHANGELOG.md: {release.version} of {release.date}")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    for key, needed in (("version", release.version), ("date-released", release.date)):
        found = re.search(rf"^{key}: (.*)$", citation, re.MULTILINE)
        told = f"CITATION.cff: {key} is {found[1] if found else 'missing'}"
        same = found is not None and found[1].strip("\"'") == needed
        yield Finding(not same, told if same else f"{told}; write {needed}")
    missing = [name for name in TEXTS if not (root / name).is_file()]
    yield Finding(bool(missing), f"missing: {', '.join(missing)}" if missing else "texts are there")


def tree(root: Path, release: Release) -> Iterator[Finding]:
    """What git says: files that differ from the commit, and the tag."""
    changed = git(root, "status", "--porcelain").splitlines()
    told = f"{len(changed)} files differ from the commit; commit them" if changed else "tree clean"
    yield Finding(bool(changed), told)
    tag = f"v{release.version}"
    if not git(root, "tag", "--list", tag):
        others = [t for t in git(root, "tag", "--points-at", "HEAD").splitlines() if t[:1] == "v"]
        told = f"; but {', '.join(others)} is: CHANGELOG.md is behind" if others else ""
        yield Finding(bool(others), f"{tag} is not tagged yet{told}")
        return
    here, at = git(root, "rev-parse", "HEAD"), git(root, "rev-parse", f"{tag}^{{commit}}")
    told = f"{tag} is this commit"
    if here != at:
        told = f"{tag} is another commit, {at[:7]}; begin a section for the next version"
    yield Finding(here != at, told)


def files(root: Path, release: Release) -> Iterator[Finding]:
    """`make build`; where the tag is yet to come, the build is told the number."""
    environment = dict(os.environ)
    if not git(root, "tag", "--list", f"v{release.version}"):
        environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = release.version
    done = subprocess.run(
        ["make", "build"], cwd=root, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
        yield Finding(True, f"make build ended with {done.returncode}; what it said is above")
        return
    wheel = dist_contents.the_file(root / "dist", "*.whl")
    named = wheel.name.startswith(f"paceline-{release.version}-")
    told = "built and checked" if named else f"needed is version {release.version}; run make build"
    yield Finding(not named, f"{dist_contents.sizes(wheel)}; {told}")


def figures(root: Path) -> Iterator[Finding]:
    """The labels of results in pages, and the ages of those in the README and of its picture."""
    results = Results.read(root)
    unlabelled = results.unlabelled()
    yield from (Finding(True, line) for line in unlabelled)
    if not unlabelled:
        yield Finding(False, "each result that a page shows has its commit beside it")
    for name in sorted(results.shown("README.md")):
        age = results.age(name)
        told = "; measure it again (CONTRIBUTING.md, Numbers)" if age.old else ""
        yield Finding(age.old, f"README: {age}{told}")
    for age in results.picture_ages():
        told = "; make it again: python tools/picture.py" if age.old else ""
        yield Finding(age.old, f"README: {age}{told}")


def minutes(contributing: str) -> dict[str, str]:
    """Target of the Makefile -> its minutes, from the table of CONTRIBUTING.md."""
    rows = re.findall(r"^\| `make ([\w-]+)` \|[^|]*\| ([^|]*) \|", contributing, re.MULTILINE)
    return dict(rows)


def by_hand(root: Path, release: Release) -> list[str]:
    """What a person has to do, in order, with commands and minutes."""
    takes = minutes((root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    suites = [f"    make {name:<14} minutes: {takes.get(name, '?')}" for name in SUITES]
    absent = [each for each in fresh_install.PYTHONS if fresh_install.find_python(each) is None]
    if absent:
        versions = ", ".join(absent)
        suites.append(
            f"    make test-wheel skips Python {versions} here: run it where there is one"
        )
    return [
        "1. Every suite has passed at this commit: make test-all, or one by one",
        *suites,
        "2. make lock-newest has found nothing newer, or make test-newest passed with it",
        "3. A search with the wheel on a GPU and a TPU, if there is one: make bench-gpu",
        "4. Somebody other than the author has read the changelog's section and the README",
        f"5. git tag -a v{release.version} -m 'Paceline {release.version}', and make release-check",
        "6. git push --tags; .venv-release/bin/python -m twine upload dist/*",
        f"7. The page of the release has the changelog's section for {release.version}",
    ]


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Prints the list; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-build", action="store_true", help="leave dist/ as it is")
    arguments = parser.parse_args(words)
    release = Release.read((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    print(f"Paceline {release.version}\n", flush=True)
    found = [*tree(root, release), *texts(root, release), *figures(root)]
    if not arguments.no_build:
        found += files(root, release)
    print(*found, sep="\n")
    print("\nTo be done by hand", *by_hand(root, release), sep="\n")
    waiting = sum(finding.waits for finding in found)
    if waiting:
        print(f"\nThe release waits for {waiting} of {len(found)} points.", flush=True)
    return int(waiting > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
