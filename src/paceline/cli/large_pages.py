"""Large pages for the memory of the process, which only environment variables can ask for.

A compiled step allocates its temporaries when it begins and frees them when it ends. In a thread,
glibc returns blocks of about 50 MiB and more to the system each time. The next step then has to get
every page of 4 KiB again, which takes a fifth of the time of a search with large convolutions
(docs/decisions/0028). With large pages there are 512 times fewer pages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.cli import restart

_VARIABLE = "GLIBC_TUNABLES"
_SETTING = "glibc.malloc.hugetlb=1"  # use large pages where the system leaves it to processes
_SINCE = (2, 35)
_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def take() -> None:
    """Starts this process again with large pages, if the system offers them.

    To be called before anything heavy is loaded. Does nothing on other systems than Linux with
    glibc, if the user has set options of the allocator, and if another program called the command.
    """
    environment = with_large_pages(os.environ) if restart.own else None
    if environment is not None:
        restart.replace(environment)


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the environment with large pages; None if it is to stay as it is."""
    if _VARIABLE in environment or any(name.startswith("MALLOC_") for name in environment):
        return None
    if not sys.platform.startswith("linux") or _glibc() < _SINCE:
        return None
    try:
        is_ours_to_ask = "[madvise]" in _SYSTEM.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return None
    return {**environment, _VARIABLE: _SETTING} if is_ours_to_ask else None


def _glibc() -> tuple[int, ...]:
    """The version of the C library if it is glibc, else (0,)."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return tuple(int(part) for part in version.split(".")) if name == "glibc" else (0,)
    except (OSError, ValueError):
        return (0,)
