"""What a wheel may hold, and where the Pythons that it is tried on are found."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = [
    "paceline/__init__.py",
    "paceline/__main__.py",
    "paceline/py.typed",
    "paceline/report/html/page.css",
    "paceline-0.1.0.dist-info/METADATA",
    "paceline-0.1.0.dist-info/licenses/LICENSE",
]


@pytest.fixture
def tool(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


def test_a_wheel_of_the_package_alone_is_right(tool):
    assert tool("dist_contents").problems_of_wheel(GOOD) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tests/test_a.py", "tests/test_a.py is not part of the package"),
        ("paceline/data/big.npz", "paceline/data/big.npz is neither code nor part of a page"),
        ("paceline/__pycache__/a.py", "paceline/__pycache__/a.py is neither code"),
        ("paceline/tests/a.py", "paceline/tests/a.py is for developers"),
    ],
)
def test_what_does_not_belong_in_a_wheel_is_named(tool, name, told):
    (line,) = tool("dist_contents").problems_of_wheel([*GOOD, name])
    assert line.startswith(told)


def test_what_a_wheel_lacks_is_named(tool):
    contents = tool("dist_contents")
    lines = contents.problems_of_wheel(["paceline/__init__.py", "paceline/__main__.py"])
    assert [line.partition(":")[0] for line in lines] == [
        "paceline/py.typed is missing",
        "the licence is missing",
    ]
    lines = contents.problems_of_sources(["p-1/pyproject.toml", "p-1/PKG-INFO", "p-1/LICENSE"])
    assert len(lines) == len(contents.NEEDED_SOURCES) - 3


def test_a_folder_without_one_wheel_says_what_to_run(tool, fresh_folder):
    contents = tool("dist_contents")
    with pytest.raises(SystemExit, match="0 files .*whl, needed is one; run: make build"):
        contents.the_file(fresh_folder, "*.whl")
    with zipfile.ZipFile("a.whl", "w") as archive:
        archive.writestr("paceline/__init__.py", "x" * 3000)
    assert contents.sizes(contents.the_file(fresh_folder, "*.whl")).endswith(", 3 kB unpacked")


def test_a_python_that_only_says_where_another_is_does_not_count(tool, monkeypatch, fresh_folder):
    fresh = tool("fresh_install")
    version = "{}.{}".format(*sys.version_info)
    shim = fresh_folder / f"python{version}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setattr(fresh, "candidates", lambda _: iter(["absent", str(shim), sys.executable]))
    assert fresh.find_python(version) == sys.executable
    assert fresh.find_python("3.0") is None


def test_the_pythons_are_those_that_pyproject_names(tool):
    """The newest one is no upper end: what Paceline needs says by its wheels what it runs on."""
    import tomllib

    named = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = tool("fresh_install").PYTHONS
    assert named["requires-python"] == f">={pythons[0]}"
    known = [each.rpartition(" ")[2] for each in named["classifiers"] if ":: Python ::" in each]
    assert tuple(known) == pythons
