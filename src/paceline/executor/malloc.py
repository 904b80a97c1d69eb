"""The process's own memory: what its C allocator keeps of memory that was freed."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Parameters of glibc's mallopt, and what it is told: during a search, and afterwards. The latter
#: is what glibc itself would come to in a process that frees arrays of 32 MiB.
_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1
_DURING = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1))
_AFTERWARDS = ((_MMAP_MAX, 2**16), (_TRIM_THRESHOLD, 2**26), (_MMAP_THRESHOLD, 2**25))

_lock = threading.Lock()
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Has the allocator keep freed memory for what is allocated next, however large.

    A compiled step allocates its temporaries when it begins and frees them when it ends. More than
    32 MiB glibc asks of the system each time, which clears every page again: a quarter of the time
    of a step with large convolutions (docs/decisions/0028). More than 64 MiB in a thread it still
    asks for. Afterwards what is free goes back to the system, but for so much per thread. Does
    nothing where the user has set glibc's allocator, and with other C libraries.
    """
    global _users
    function = None if _is_set_by_the_user() else _mallopt()
    if function is None:
        yield
        return
    with _lock:
        _users += 1
        _tell(function, _DURING)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _tell(function, _AFTERWARDS)
                _return_what_is_free()


def _tell(mallopt: Callable[[int, int], int], settings: tuple[tuple[int, int], ...]) -> None:
    for parameter, value in settings:
        mallopt(parameter, value)


def _is_set_by_the_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)


def give_back() -> None:
    """Collects what nobody refers to, and returns what the allocator keeps of it to the system.

    glibc keeps freed memory that lies below memory in use. With TensorFlow, whose threads free what
    others took, a process of many trials grows by it.
    """
    gc.collect()
    _return_what_is_free()


def _return_what_is_free() -> None:
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return _of_the_c_library("malloc_trim")


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    return _of_the_c_library("mallopt")


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)  # not in every C library
