"""How often a thread that uses and frees 60 MiB five times is given new pages: prints JSON.

1 means: each page once. More than 64 MiB glibc keeps for the main thread alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

from paceline.executor import process

SIZE, TIMES = 60 * 2**20, 5


def use_and_free(size: int) -> None:
    """Writes to so many bytes; NumPy would ask for large pages, as XLA does not."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = library.free.argtypes = [ctypes.c_size_t]
    memory = library.malloc(size)
    ctypes.memset(memory, 1, size)
    library.free(memory)


def new_pages() -> float:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(TIMES):
        use_and_free(SIZE)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    return faults * os.sysconf("SC_PAGE_SIZE") / SIZE


def main() -> None:
    with ThreadPoolExecutor(1) as thread:
        found = {"before": thread.submit(new_pages).result()}
        with process.freed_memory_kept():
            found["first"] = thread.submit(new_pages).result()
            with process.freed_memory_kept():
                pass
            found["nested"] = thread.submit(new_pages).result()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
