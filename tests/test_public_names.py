"""What `import paceline` gives, and what it must not cost."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).resolve().parents[1]

# Loading one of these takes a second or more, and JAX may claim the accelerator.
HEAVY = {"jax", "jaxlib", "keras", "tensorflow", "torch", "ray"}

# Split, so that a search of the tree does not find this list itself.
UNFINISHED = re.compile(
    "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"))
)


LIGHT = [
    "paceline",
    "paceline.search_space",
    "paceline.study.study",
    "paceline.report",
    "paceline.cli.app",
]

REPORT_LOADED = f"""
import importlib, json, sys
found = {{}}
for name in {LIGHT}:
    importlib.import_module(name)
    found[name] = [heavy for heavy in {sorted(HEAVY)} if heavy in sys.modules]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Heavy modules there after each import, in a process that has loaded nothing else."""
    command = [sys.executable, "-c", REPORT_LOADED]
    outcome = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("name", LIGHT)
def test_an_import_loads_nothing_heavy(loaded, name):
    assert loaded[name] == []


def test_the_public_names_are_there():
    assert {"Tuner", "HyperParameters"} <= set(paceline.__all__)
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None


def test_the_public_names_can_be_listed():
    assert set(paceline.__all__) <= set(dir(paceline))


def test_importing_all_names_leaves_pythons_own_as_they_are():
    taken = set(paceline.__all__) & set(dir(builtins))
    assert not taken
    assert "map" in dir(paceline) and paceline.map is not map


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"paceline.*no_such_name"):
        paceline.no_such_name  # noqa: B018 - reading it is the test


def test_every_error_says_whose_it_is():
    from paceline import errors

    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert classes
    assert all(issubclass(each, errors.PacelineError) for each in classes)
    assert all(each.__doc__ for each in classes)


def test_nothing_is_left_unfinished():
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("src", "examples", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not left


@pytest.mark.slow
def test_the_suite_for_executors_has_a_public_name():
    script = """
import sys
import paceline
import paceline.testing
assert "paceline.executor.testing" not in sys.modules
from paceline.testing import ExecutorContract
from paceline.testing.executors import ExecutorContract as by_its_older_name
from paceline.executor.testing import ExecutorContract as here
assert ExecutorContract is here is by_its_older_name
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_data_sets_have_a_public_name():
    script = "from paceline import datasets; import paceline.datasets; datasets.digits"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_public_module_answers_to_public_names_only():
    """Pickle asks every module there is for the name of an object that knows no module."""
    script = """
import importlib.util
import sys
import paceline
assert not hasattr(paceline.testing, "any_name")
assert not hasattr(sys.modules["paceline.datasets"], "any_name")
assert importlib.util.find_spec("paceline.testing") is not None
assert "keras" not in sys.modules and "paceline.executor.testing" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
