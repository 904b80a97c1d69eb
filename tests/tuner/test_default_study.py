"""What a study is called that the user gives no name."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import paceline
from paceline.tuner.arguments.naming import default_study

CODE = """\
import paceline
tuner = paceline.Tuner(lambda hp: None)
print(tuner.name)
"""


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_study_is_called_as_its_script():
    Path("lab.v2").mkdir()
    Path("lab.v2/train it.py").write_text(CODE, encoding="utf-8")
    assert run("lab.v2/train it.py") == "train it"


@pytest.fixture
def program(monkeypatch):
    """Say which file this process runs, or what a notebook's kernel says of its notebook."""

    def say(file: str | None = None, *, notebook: bool = False, **names: str) -> None:
        main = types.ModuleType("__main__")
        vars(main).update(names if file is None else {"__file__": file})
        monkeypatch.setitem(sys.modules, "__main__", main)
        if notebook:
            monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
        else:
            monkeypatch.delitem(sys.modules, "ipykernel", raising=False)

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return say


def named() -> tuple[str, str | None]:
    return default_study()


@pytest.mark.parametrize(
    ("file", "name"),
    [("/a/b/train.py", "train"), ("train", "train"), ("/a/lab/__main__.py", "lab")],
)
def test_the_file_names_the_study(program, file, name):
    program(file)
    assert named() == (name, None)


@pytest.mark.parametrize("file", [None, ".hidden.py", "/a/\x1b.py", f"{'x' * 200}.py"])
def test_without_a_name_of_a_file_it_is_study_and_says_so(program, file):
    program(file)
    name, note = named()
    assert name == "study"
    assert note is not None and "Pass study='NAME'" in note


def test_a_notebook_names_the_study_where_the_kernel_knows_it(program, monkeypatch):
    program(notebook=True)
    assert named()[0] == "study"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/mnist.ipynb")
    assert named() == ("mnist", None)
    program(notebook=True, __session__="/home/me/other.ipynb")
    assert named() == ("other", None)
    program(notebook=True, __vsc_ipynb_file__="/home/me/third.ipynb")
    assert named() == ("third", None)
    monkeypatch.setenv("JPY_SESSION_NAME", "4e1f-uuid")
    program(notebook=True)
    assert named()[0] == "study"
