"""Says whether the wheel in dist/ holds the package and nothing else, and how large it is.

`make build` runs it. It also looks at the source distribution, which must be enough to build from.

    python tools/dist_contents.py          # looks into dist/
    python tools/dist_contents.py FOLDER
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

#: What a wheel must hold beside its metadata.
NEEDED = ("paceline/__init__.py", "paceline/__main__.py", "paceline/py.typed")

#: What a source distribution must hold, below its one folder.
NEEDED_SOURCES = (
    "pyproject.toml",
    "PKG-INFO",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "src/paceline/py.typed",
)

#: Ends of the names of what the package consists of: code, types, and what pages are made of.
KINDS = (".py", "py.typed", ".html", ".css", ".js")


def problems_of_wheel(names: Collection[str]) -> list[str]:
    """What is wrong with the list of a wheel's files; each line says what to do."""
    wrong = [f"{name} is missing: see [tool.hatch.build] in pyproject.toml" for name in NEEDED]
    wrong = [line for line in wrong if line.partition(" ")[0] not in names]
    for name in sorted(names):
        top, _, rest = name.partition("/")
        if top.endswith(".dist-info"):
            continue
        if top != "paceline":
            wrong.append(f"{name} is not part of the package: take it out of the wheel")
        elif not name.endswith(KINDS) or "__pycache__" in name:
            wrong.append(f"{name} is neither code nor part of a page: take it out")
        elif rest.partition("/")[0] in ("tests", "benchmarks"):
            wrong.append(f"{name} is for developers: take it out of the wheel")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        wrong.append("the licence is missing: see license-files in pyproject.toml")
    return wrong


def problems_of_sources(names: Iterable[str]) -> list[str]:
    """What is wrong with the list of a source distribution's files."""
    inside = {name.partition("/")[2] for name in names}
    return [
        f"{name} is missing in the source distribution: see [tool.hatch.build.targets.sdist]"
        for name in NEEDED_SOURCES
        if name not in inside
    ]


def the_file(folder: Path, pattern: str) -> Path:
    """The one file in the folder that matches.

    Raises:
        SystemExit: None matches, or several do.
    """
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder}: {len(found)} files {pattern}, needed is one; run: make build")
    return found[0]


def sizes(wheel: Path) -> str:
    """One line: files and bytes of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    unpacked = sum(file.file_size for file in files)
    return (
        f"{wheel.name}: {len(files)} files, {wheel.stat().st_size / 1000:,.0f} kB, "
        f"{unpacked / 1000:,.0f} kB unpacked"
    )


def problems(folder: Path) -> list[str]:
    """What is wrong with the wheel and the source distribution in the folder."""
    with zipfile.ZipFile(the_file(folder, "*.whl")) as archive:
        found = problems_of_wheel(archive.namelist())
    with tarfile.open(the_file(folder, "*.tar.gz")) as archive:
        return found + problems_of_sources(archive.getnames())


def main(folder: Path) -> int:
    """Prints what is wrong, or the size; returns the exit status."""
    found = problems(folder)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(sizes(the_file(folder, "*.whl")))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else "dist")))
