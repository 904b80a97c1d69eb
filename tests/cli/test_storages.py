"""Every command with a storage of every kind; the password of a URL comes out nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from marks import slow_where


@pytest.fixture(params=["journal", *slow_where(["sqlite", "postgresql"], bool)])
def storage(request: pytest.FixtureRequest) -> str:
    """A URL of each kind; a server's holds a password."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").database()
    return {"journal": "journal:kept/s.log", "sqlite": "sqlite:///kept/s.db"}[request.param]


def test_all_commands(
    storage: str, paceline: Callable[..., Any], user_modules: None, monkeypatch
) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("model.py").write_text(toys.MODEL_FILE)
    where = ("--storage", storage)
    said = []

    def run(*words: str) -> Any:
        done = paceline(*words, *where)
        said.append(done.out + done.err)
        assert done.code == 0, done.err
        return done

    search = ("--study", "s", "--trials", "2", "--epochs", "1", "--sampler", "random")
    found = run("search", "model.py", *search, "--json").json
    assert found["n_trials"]["complete"] == 2
    assert len(run("trials", "s", "--json").json) == 2
    best = run("best", "s", "--json").json
    run("export", "s", "-o", "best.keras")
    assert Path("best.keras").is_file()
    more = run("resume", "s", "--trials", "+1", "--json").json
    assert more["n_trials"]["complete"] == 3
    assert more["best"]["value"] >= best["value"]
    again = run("reproduce", "s", "0", "--json")
    assert again.code == 0
    said.append(paceline("best", "nothing", *where).err)
    password = storage.partition("@")[0].rpartition(":")[2] if "@" in storage else None
    if password is None:
        return
    assert len(password) > 8
    shut = storage.replace("127.0.0.1:", "127.0.0.2:1")  # nobody listens there
    said.append(paceline("trials", "s", "--storage", shut).err)
    assert "cannot be opened" in said[-1]
    assert not [text for text in said if password in text]
    written = [path for path in Path().rglob("*") if path.is_file()]
    assert any(path.name == "manifest.json" for path in written)
    assert not [path for path in written if password.encode() in path.read_bytes()]
