"""The live view: a panel in a terminal, a table in a notebook, a line every 30 seconds elsewhere.

The training thread only hands records over, which takes well under a microsecond; a thread of the
view draws them. No error of the view reaches the training: a terminal that is closed or a broken
notebook does not end a search.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable

from rich.console import Console

from paceline.report import panel
from paceline.report.notebook import NotebookScreen, notebook_display
from paceline.report.progress import Progress
from paceline.report.screens import LineScreen, PanelScreen, QuietScreen, Screen

Clock = Callable[[], float]


class LiveView:
    """A view that shows a search while it runs.

    Use the view as a context manager, and give ``view.update`` and ``view.note`` to the tuner.
    ``last_line``: whether one line about the search stays at the end.
    """

    def __init__(
        self, screen: Screen, *, clock: Clock = time.monotonic, last_line: bool = False
    ) -> None:
        self._screen = screen
        self._clock = clock
        self._last_line = last_line
        self._latest: tuple[Progress, float] | None = None
        self._began: float | None = None
        self._said: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveView:
        self._began = self._clock()
        self._guarded(self._screen.open)
        # The thread runs in the caller's context, by which a notebook finds the cell that prints.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run,),
            name="paceline-live-view",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing and close the screen. A second call has no effect."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=5)  # a terminal that is stuck must not hold up the end
        latest = self.latest
        if latest is not None and latest.phase == "done" and latest.n_running:
            self._guarded(lambda: self._screen.stay(latest))
        last = latest if self._last_line else None
        self._guarded(lambda: self._screen.close(last))

    @property
    def latest(self) -> Progress | None:
        """The newest record; None before the first one."""
        return None if self._latest is None else self._latest[0]

    def status(self, text: str) -> None:
        """Show what happens before there is a first record: ``loading examples/digits.py``."""
        self._guarded(lambda: self._screen.status(text))

    def update(self, progress: Progress) -> None:
        """Take the newest record; the thread of the view draws it at its next turn."""
        self._latest = (progress, self._clock())

    def note(self, text: str) -> None:
        """Show one sentence at once, and let it stay; the same sentence is shown only once."""
        if text in self._said:
            return
        self._said.add(text)
        self._guarded(lambda: self._screen.note(text))

    def draw(self) -> None:
        """Draw the newest record, with its times moved on to now."""
        latest = self._latest
        if latest is not None:
            progress, when = latest
            moment = panel.later(progress, self._clock() - when)
            self._guarded(lambda: self._screen.draw(moment))
        elif self._began is not None:
            waited = self._clock() - self._began
            self._guarded(lambda: self._screen.wait(waited))

    def _run(self) -> None:
        while not self._ended.wait(self._screen.interval):
            self.draw()

    @staticmethod
    def _guarded(action: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):
            action()


def live_view(title: str, *, quiet: bool = False, last_line: bool = False) -> LiveView:
    """Return the view that suits the place where this process writes, not started yet.

    ``quiet`` shows nothing but notes. ``title`` is shown until the first record. ``last_line``:
    whether one line stays at the end, for callers that print no summary themselves.
    """
    if quiet:
        return LiveView(QuietScreen(sys.stderr))
    display = notebook_display()
    if display is not None:
        return LiveView(NotebookScreen(display, sys.stdout), last_line=last_line)
    console = Console(stderr=True)
    if sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(PanelScreen(console, title), last_line=last_line)
    return LiveView(LineScreen(sys.stderr), last_line=last_line)
