"""The cache of compiled programs: where it is, what it keeps, and what it leaves as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.program.compilation_cache import programs_folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and no variable that names a folder of caches."""
    for name in ("PACELINE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_variable_of_paceline_comes_first(home, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "named"))
    assert programs_folder() == tmp_path / "named" / "programs"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG is for Linux")
def test_without_it_the_folder_is_where_linux_keeps_caches(home, monkeypatch, tmp_path):
    assert programs_folder() == home / ".cache" / "paceline" / "programs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert programs_folder() == tmp_path / "xdg" / "paceline" / "programs"
