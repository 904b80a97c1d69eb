"""Memory that was freed goes back to the system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.allocations import use_and_free
from paceline.executor import process


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(process._trim() is None, reason="this C library has no malloc_trim")
@pytest.mark.slow
def test_what_lies_below_memory_in_use_is_returned() -> None:
    n, size = 50_000, 2000  # 100 MB in pieces that the allocator serves from one heap
    pieces = [bytearray(size) for _ in range(n)]
    full = resident()
    del pieces[:-1]
    kept = resident()
    process.give_back()
    assert full - kept < 0.2 * n * size, "nothing was kept, so nothing is tested"
    assert full - resident() > 0.8 * n * size


@pytest.mark.skipif(process._mallopt() is None, reason="this C library has no mallopt")
@pytest.mark.slow
def test_large_memory_is_asked_for_once() -> None:
    """In a process of its own: what others have freed would be used first."""
    script = Path(__file__).with_name("allocations.py")
    environment = {name: text for name, text in os.environ.items() if "MALLOC" not in name}
    environment.pop("GLIBC_TUNABLES", None)

    def asked_for(**more: str) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, script],
            env=environment | more,
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)

    found = asked_for()
    assert found["before"] > 4.9
    assert found["first"] < 1.1
    assert found["nested"] < 0.1
    # A user who has set the allocator is left alone.
    assert asked_for(MALLOC_ARENA_MAX="4")["first"] > 4.9


@pytest.mark.skipif(process._mallopt() is None, reason="this C library has no mallopt")
def test_what_was_kept_is_given_back() -> None:
    size, before = 300 * 2**20, resident()
    with process.freed_memory_kept():
        use_and_free(size)
        assert resident() - before > 0.9 * size
    assert resident() - before < 0.1 * size


def test_other_systems_only_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for function in (process._trim, process._mallopt):
        function.cache_clear()
    try:
        process.give_back()
        with process.freed_memory_kept():
            assert process._trim() is process._mallopt() is None
    finally:
        for function in (process._trim, process._mallopt):
            function.cache_clear()
