"""Memory that was freed goes back to the system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline.executor import heap


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(heap._trim() is None, reason="this C library has no malloc_trim")
def test_what_lies_below_memory_in_use_is_returned() -> None:
    n, size = 50_000, 2000  # 100 MB in pieces that the allocator serves from one heap
    pieces = [bytearray(size) for _ in range(n)]
    full = resident()
    del pieces[:-1]
    kept = resident()
    heap.give_back()
    assert full - kept < 0.2 * n * size, "nothing was kept, so nothing is tested"
    assert full - resident() > 0.8 * n * size


def test_other_systems_only_collect(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    heap._trim.cache_clear()
    try:
        heap.give_back()
        assert heap._trim() is None
    finally:
        heap._trim.cache_clear()
