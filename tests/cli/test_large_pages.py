"""The command has large pages, unless somebody has chosen otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import restart
from paceline.executor.process import StopSignal

SEARCH = """
import json, os, pathlib
said = {name: os.environ.get(name) for name in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX")}
pathlib.Path("said.json").write_text(json.dumps({**said, "parent": os.getppid()}))
raise RuntimeError("enough")
"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system that leaves large pages to processes."""
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    monkeypatch.setattr(restart, "_SYSTEM", path)
    monkeypatch.setattr(restart, "_glibc", lambda: (2, 36))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(restart, "own", True)
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: found.append(given))
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    return found


def test_the_same_words_are_run_again(system: Path, started: list[Any]) -> None:
    restart.take_large_pages()
    ((program, words, environment),) = started
    assert [program, words] == [sys.executable, [sys.executable, *sys.orig_argv[1:]]]
    held = {"PACELINE_SIGNALS_HELD": "1"}
    assert environment == {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **held}


def test_a_signal_that_was_only_noted_is_not_lost_with_the_process(
    system: Path, started: list[Any]
) -> None:
    """One that comes while a module loads is noted, and sent again a moment later."""
    with StopSignal.of_process() as stop:
        stop.asked = True
        with pytest.raises(KeyboardInterrupt, match="^$"):
            restart.take_large_pages()
    assert started == []
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("text", ["[always] madvise never", "always madvise [never]"])
def test_not_where_the_system_has_decided(system: Path, started: list[Any], text: str) -> None:
    system.write_text(text)
    restart.take_large_pages()
    assert started == []


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"])
def test_not_where_the_user_has_decided(
    system: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "")
    restart.take_large_pages()
    assert started == []


def test_not_on_other_systems(
    system: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "_glibc", lambda: (2, 34))
    restart.take_large_pages()
    monkeypatch.setattr(restart, "_glibc", lambda: (2, 36))
    system.unlink()
    restart.take_large_pages()
    system.write_text("[madvise]")
    monkeypatch.setattr(sys, "platform", "darwin")
    restart.take_large_pages()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(restart, "own", False)  # called by a program
    restart.take_large_pages()
    assert started == []


@pytest.mark.parametrize("library", ["glibc 2.36", "", None, "musl 1.2"])
def test_the_version_of_the_c_library(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert restart._glibc() == ((2, 36) if library == "glibc 2.36" else (0,))


@pytest.mark.parametrize("chosen", [{}, {"MALLOC_ARENA_MAX": "2"}])
def test_a_search(child_environment: dict[str, str], fresh_folder: Path, chosen: Any) -> None:
    Path("it.py").write_text(SEARCH)
    own = {k: v for k, v in child_environment.items() if k != "GLIBC_TUNABLES"}
    child = subprocess.Popen(
        [sys.executable, "-m", "paceline", "search", "it.py"],
        env=own | chosen,
        stderr=subprocess.PIPE,
    )
    _, err = child.communicate(timeout=120)
    assert child.returncode == 2 and b"enough" in err
    said = json.loads(Path("said.json").read_text())
    assert said["parent"] == child.pid  # which passes signals on
    environment = own | chosen
    wanted = restart.with_large_pages(environment) or environment
    assert said["GLIBC_TUNABLES"] == wanted.get("GLIBC_TUNABLES")
    assert said["MALLOC_ARENA_MAX"] == chosen.get("MALLOC_ARENA_MAX")
