"""The process's own memory: what its C allocator keeps of memory that was freed."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable


def give_back() -> None:
    """Collects what nobody refers to, and returns what the allocator keeps of it to the system.

    glibc keeps freed memory that lies below memory in use. With TensorFlow, whose threads free what
    others took, a process of many trials grows by it.
    """
    gc.collect()
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every C library
