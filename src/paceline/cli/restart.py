"""A search that goes on in another process, because a compiled step of this one does not come back.

The process replaces itself: terminal, pid and redirections stay, and the same words are run again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from paceline.cli import output

#: Environment: when the search is to end, in seconds since 1970, or nothing; from this process to
#: the one that goes on, for which ``--timeout`` would begin anew.
_VARIABLE = "PACELINE_ENDS_AT"


#: Whether the words are this process's own. A program that calls ``paceline.cli.app.main`` may give
#: it words of its own, and that program's process is not to be replaced.
own = False


class Restart:
    """What it takes to begin again in the folder where this process began."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._ends_at: float | None = None

    def ends_in(self, seconds: float | None) -> None:
        """Notes how long the search may still take; None for no limit."""
        self._ends_at = None if seconds is None else time.time() + seconds

    @property
    def possible(self) -> bool:
        """Whether another process can take this one's place, and has time left."""
        late = self._ends_at is not None and time.time() > self._ends_at
        return own and os.name == "posix" and not late

    def now(self) -> NoReturn:
        """Goes on in another process; safe in any thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(self._folder)
        ends_at = "" if self._ends_at is None else str(self._ends_at)
        replace({**os.environ, _VARIABLE: ends_at})


def replace(environment: Mapping[str, str]) -> NoReturn:
    """Has another process take this one's place: the same words, in another environment."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def end(text: str) -> NoReturn:
    """Ends the process as failed, whatever its other threads do; safe in any thread."""
    output.say(f"failed: {text}")
    sys.stdout.flush()
    os._exit(output.FAILED)


def inherited() -> tuple[bool, float | None]:
    """Whether this process goes on for another one, and the seconds that it has left for that."""
    ends_at = os.environ.pop(_VARIABLE, None)
    left = max(0.001, float(ends_at) - time.time()) if ends_at else None
    return ends_at is not None, left
