"""The environment of `make bench-gpu`, with and without a JAX that is there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = """jax==0.10.2 ; python_full_version < '3.12' \\
    --hash=sha256:aa
jax==0.12.0 ; python_full_version >= '3.12' \\
    --hash=sha256:bb
jax-cuda13-pjrt==0.10.2 ; sys_platform == 'linux' \\
    --hash=sha256:cc
keras==3.15.1 \\
    --hash=sha256:dd \\
    --hash=sha256:ee
"""


@pytest.fixture
def tool(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("gpu_environment")


@pytest.fixture
def commands(tool, monkeypatch) -> list[tuple[list[str], str | None]]:
    """Commands that would be run, and the requirements that each is given."""
    found: list[tuple[list[str], str | None]] = []

    def run(command: list[str]) -> None:
        given = Path(command[-1]).read_text() if "-r" in command else None
        found.append((list(command), given))

    monkeypatch.setattr(tool, "_run", run)
    return found


@pytest.mark.parametrize(
    ("python", "there", "kept"),
    [
        ("3.11", False, ["aa", "cc", "dd", "ee"]),
        ("3.13", False, ["bb", "cc", "dd", "ee"]),
        ("3.12", True, ["dd", "ee"]),
    ],
)
def test_what_is_installed_is_for_that_python_and_that_machine(
    tool, python: str, there: bool, kept: list[str]
) -> None:
    chosen = tool.requirements(LOCK, python, there)
    assert re.findall("sha256:(..)", chosen) == kept
    assert "python_full_version" not in chosen


def test_the_lock_is_of_markers_that_are_understood(tool) -> None:
    lock = tool.LOCK.read_text(encoding="utf-8")
    chosen = tool.requirements(lock, "3.12", True)
    assert "keras-tuner==" in chosen and "hatchling==" in chosen
    assert not re.search("^(jax|nvidia|numpy)", chosen, re.MULTILINE)
    assert set(re.findall(r" ; (\w+)", chosen)) <= {"sys_platform"}


@pytest.mark.parametrize("there", [True, False])
def test_a_jax_that_sees_an_accelerator_stays(tool, commands, monkeypatch, tmp_path, there) -> None:
    monkeypatch.setattr(tool, "has_accelerator", lambda python: there)
    tool.make(tmp_path / "gpu", tmp_path / "wheels")
    (venv, _), (install, chosen) = commands
    assert ("--system-site-packages" in venv) is there
    assert "--require-hashes" in install and "--no-index" not in install
    assert ("jaxlib==" not in chosen) is there and "optuna==" in chosen


def test_with_a_folder_of_wheels_no_network_is_asked(tool, commands, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tool, "has_accelerator", lambda python: False)
    (tmp_path / "wheels").mkdir()
    tool.make(tmp_path / "gpu", tmp_path / "wheels")
    install = commands[1][0]
    assert "--no-index" in install and install[install.index("--find-links") + 1].endswith("wheels")


def test_the_folder_is_filled_for_another_python(tool, commands) -> None:
    assert tool.main(["download", "--python", "3.12", "--accelerator-is-there"]) == 0
    command, chosen = commands[0]
    assert command[command.index("--python-version") + 1] == "3.12"
    assert command[command.index("--dest") + 1] == str(ROOT / "wheels")
    assert "jaxlib==" not in chosen and "keras==" in chosen


def test_this_python_has_no_accelerator_where_the_tests_run_on_a_cpu(tool) -> None:
    import jax

    assert tool.has_accelerator(sys.executable) is (jax.default_backend() != "cpu")
    assert not tool.has_accelerator("/bin/false")
