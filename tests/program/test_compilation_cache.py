"""The cache of compiled programs: where it is, what it keeps, and what it leaves as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from paceline.program import compilation_cache as ours
from paceline.program.compilation_cache import is_complete, persistent_cache, programs_folder, tidy
from paceline.program.compile import compile_in_background

#: Of an entry that JAX might have written.
WHOLE = zlib.compress(bytes(range(256)) * 40)


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


def entry(folder: Path, name: str, content: bytes = WHOLE, *, age: float = 100.0) -> Path:
    """An entry that was written, and last used, so many seconds ago."""
    path = folder / f"jit_{name}-0123-cache"
    path.write_bytes(content)
    at = time.time() - age
    os.utime(path, (at, at))
    return path


def test_entries_that_were_not_used_for_longest_are_removed(tmp_path):
    old, used, new = (entry(tmp_path, n, age=a) for n, a in (("a", 300), ("b", 200), ("c", 100)))
    os.utime(used, (time.time(), used.stat().st_mtime))
    of_old = old.with_name("jit_a-0123-atime")  # JAX writes such a file where it has a limit
    of_old.write_bytes(b"12345678")
    (tmp_path / "modules").mkdir()
    tidy(tmp_path, len(WHOLE))
    assert not old.exists()
    assert not of_old.exists()
    assert not new.exists()
    assert used.exists()
    assert (tmp_path / "modules").is_dir()


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path):
    kept = entry(tmp_path, "whole")
    broken = [entry(tmp_path, "half", WHOLE[: len(WHOLE) // 2]), entry(tmp_path, "none", b"")]
    broken += [entry(tmp_path, "cut", WHOLE[:-1]), entry(tmp_path, "other", b"no entry of JAX")]
    unknown = entry(tmp_path, "zstandard", b"\x28\xb5\x2f\xfd" + b"?")
    tidy(tmp_path)
    assert kept.exists()
    assert [path.name for path in broken if path.exists()] == []
    assert unknown.exists() == is_complete(str(unknown))  # judged where zstandard is installed


def test_an_entry_that_is_just_being_written_stays_until_it_has_settled(tmp_path):
    entry(tmp_path, "whole")
    half = entry(tmp_path, "half", WHOLE[:9], age=0)
    for _ in range(2):
        tidy(tmp_path)
        assert half.exists()
    tidy(tmp_path, settled=0)
    assert not half.exists()


def test_each_entry_is_read_once(tmp_path):
    entry(tmp_path, "a")
    tidy(tmp_path)
    damaged = entry(tmp_path, "a", b"", age=100)  # as old as what was checked: not looked at again
    os.utime(damaged, (0, 0))
    tidy(tmp_path)
    assert damaged.exists()
    later = entry(tmp_path, "b", b"", age=50)
    tidy(tmp_path)
    assert not later.exists()


def test_nothing_is_removed_while_another_process_has_the_lock(tmp_path):
    half = entry(tmp_path, "half", b"")
    with filelock.FileLock(tmp_path / ".lockfile"):
        tidy(tmp_path, 0)
        assert half.exists()
    tidy(tmp_path, 0)
    assert not half.exists()


def test_one_search_unpacks_the_newest_entries_only(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_CHECKED_BYTES", 3)
    old, new = entry(tmp_path, "a", b"ab", age=300), entry(tmp_path, "b", b"ab", age=200)
    tidy(tmp_path)
    assert old.exists()
    assert not new.exists()


_CHILD = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from program.test_compilation_cache import in_this_process
print(json.dumps(in_this_process()))
"""


def in_this_process() -> list[Any]:
    """Whether a program came from the cache, its numbers, and the warnings."""
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    with warnings.catch_warnings(record=True) as said, persistent_cache():
        warnings.simplefilter("always")
        done = compile_in_background(lambda x: 2 * x + 1, (shape,)).result()
        numbers = np.asarray(done.call(np.arange(3, dtype=np.float32))).tolist()
    return [done.from_cache, numbers, [str(one.message) for one in said]]


def in_another_process(environment: dict[str, str]) -> list[Any]:
    """What ``in_this_process`` says in a process with the same devices, so that keys are equal."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(Path(__file__).parents[1])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_half_written_entry_costs_a_compile_and_is_replaced(folder):
    assert in_this_process() == [False, [1, 3, 5], []]
    (written,) = folder.glob("*-cache")
    half = written.read_bytes()[: written.stat().st_size // 2]

    # Another process is just writing it: JAX says so once, and compiles.
    written.write_bytes(half)
    os.utime(written, (time.time() + 600, time.time() + 600))  # however slowly processes start
    environment = {n: v for n, v in os.environ.items() if not n.startswith("JAX_COMPILATION")}
    from_cache, numbers, said = in_another_process(environment)
    assert (from_cache, numbers) == (False, [1, 3, 5])
    assert [text[:49] for text in said] == ["Error reading persistent compilation cache entry "]
    assert written.read_bytes() == half

    # It stays half written: the process was killed.
    os.utime(written, (time.time() - 100, time.time() - 100))
    (folder / ".checked").unlink()  # time has passed since
    assert in_this_process() == [False, [1, 3, 5], []]
    assert is_complete(str(written))


NAMES = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
#: What a user has set: none of it is a default of JAX or of a search.
USERS = (None, 12345, 7.0, 8)


def settings() -> tuple[Any, ...]:
    return tuple(getattr(jax.config, name) for name in NAMES)


def set_all(values: tuple[Any, ...]) -> None:
    for name, value in zip(NAMES, values, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def folder(cache_folder: Path) -> Iterator[Path]:
    """Our folder; JAX has a user's settings, and no folder."""
    before = settings()
    set_all(USERS)
    yield cache_folder / "paceline" / "programs"
    set_all(before)


def entries(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in folder.glob("*-cache")}


def test_settings_are_as_before_and_later_programs_of_the_user_are_not_kept(folder):
    def in_a_search(x: Any) -> Any:
        return 3 * x

    def afterwards(x: Any) -> Any:
        return 5 * x

    with persistent_cache():
        assert settings()[0] == str(folder)
        jax.jit(in_a_search)(jnp.ones(3))
    assert settings() == USERS
    assert "jit_in_a_search" in entries(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.jit(afterwards)(jnp.ones(3))
    assert "jit_afterwards" not in entries(folder)


def test_a_second_search_finds_the_programs_of_the_first_in_memory_and_on_disk(folder):
    compiled: list[str] = []

    def heard(event: str, **_: Any) -> None:
        compiled.append(event.rpartition("/")[2])

    def made_anew() -> Any:
        def program(x: Any) -> Any:
            return 7 * x

        return jax.jit(program)

    jax.monitoring.register_event_listener(heard)
    x, step = jnp.ones(3), made_anew()
    with persistent_cache():
        step(x)
    assert "cache_misses" in compiled
    compiled.clear()
    with persistent_cache():
        step(x)
    assert compiled == []
    with persistent_cache():
        made_anew()(x)
    assert "cache_hits" in compiled
    assert "cache_misses" not in compiled


def test_the_last_of_several_searches_puts_the_settings_back(folder):
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with persistent_cache():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with persistent_cache():
        during = settings()
        with persistent_cache():
            assert settings() == during
        thread.start()
        assert inside.wait(60)
    assert settings() == during
    leave.set()
    thread.join(60)
    assert settings() == USERS


def test_an_error_and_an_interrupt_put_the_settings_back(folder):
    for error in (ValueError("stop"), KeyboardInterrupt("stop")):
        with pytest.raises(type(error), match="stop"), persistent_cache():
            raise error
        assert settings() == USERS


def test_a_folder_of_the_user_stays(folder, tmp_path):
    set_all((str(tmp_path / "users"), *USERS[1:]))
    with persistent_cache():
        assert settings() == (str(tmp_path / "users"), *USERS[1:])
    assert settings() == (str(tmp_path / "users"), *USERS[1:])
    assert not folder.exists()


def test_what_a_user_changes_meanwhile_stays(folder, tmp_path):
    with persistent_cache():
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "users"))
    assert settings() == (str(tmp_path / "users"), *USERS[1:])


def test_the_folder_is_listed_when_it_has_changed(folder, monkeypatch):
    listed: list[Path] = []
    monkeypatch.setattr(ours, "tidy", listed.append)
    for _ in range(2):
        with persistent_cache(), persistent_cache():
            pass
    assert listed == [folder]
    time.sleep(0.05)  # the file system's clock has ticks
    entry(folder, "new")
    with persistent_cache():
        pass
    assert listed == [folder, folder]
