"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
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


def faults(size: int, times: int) -> int:
    """Pages that the system hands out while this thread uses and frees so many bytes repeatedly."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = library.free.argtypes = [ctypes.c_size_t]
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(times):  # NumPy would ask for large pages, as XLA does not
        memory = library.malloc(size)
        ctypes.memset(memory, 1, size)
        library.free(memory)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(heap._mallopt() is None, reason="this C library has no mallopt")
def test_large_memory_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    size, times = 60 * 2**20, 5  # more than 64 MiB glibc keeps for the main thread alone
    pages = size // os.sysconf("SC_PAGE_SIZE")
    with ThreadPoolExecutor(1) as thread:  # the main thread may have free memory as it is

        def asked_for() -> float:
            return thread.submit(faults, size, times).result() / pages

        monkeypatch.setenv("MALLOC_ARENA_MAX", "4")  # any setting of the user's
        with heap.kept():
            assert asked_for() > times - 0.1
        monkeypatch.delenv("MALLOC_ARENA_MAX")
        with heap.kept():
            with heap.kept():
                assert asked_for() < 1.1
            assert asked_for() < 0.1


@pytest.mark.skipif(heap._mallopt() is None, reason="this C library has no mallopt")
def test_what_was_kept_is_given_back() -> None:
    size, before = 300 * 2**20, resident()
    with heap.kept():
        faults(size, 2)
        assert resident() - before > 0.9 * size
    assert resident() - before < 0.1 * size


def test_other_systems_only_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for function in (heap._trim, heap._mallopt):
        function.cache_clear()
    try:
        heap.give_back()
        with heap.kept():
            assert heap._trim() is heap._mallopt() is None
    finally:
        for function in (heap._trim, heap._mallopt):
            function.cache_clear()
