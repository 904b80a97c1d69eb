"""Screens that show a running search: a terminal, a log. That of a notebook is elsewhere."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TextIO

from rich.console import Console
from rich.live import Live

from paceline.report import formats, panel
from paceline.report.progress import Progress


class Screen(ABC):
    """A place that shows a search. Every method may raise; ``LiveView`` ignores the errors."""

    interval: float  # seconds between drawings

    def open(self) -> None:  # noqa: B027 - most screens have nothing to do here
        """Prepare the screen."""

    def status(self, text: str) -> None:  # noqa: B027 - some screens do not show this
        """Show what happens before there is a first record."""

    def wait(self, seconds: float) -> None:  # noqa: B027 - most screens do not show this
        """Show how long there has been no record."""

    @abstractmethod
    def draw(self, progress: Progress) -> None:
        """Show the state of the search."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a sentence that stays."""

    def stay(self, progress: Progress) -> None:  # noqa: B027 - most screens have nothing to do here
        """Take the last record of a search that was stopped: what is shown of it is to stay."""

    def close(self, last: Progress | None) -> None:
        """Leave the screen as it was; the state of the search stays as a line unless it is None."""
        if last is not None:
            self.note(panel.line(panel.ended(last)))


class PanelScreen(Screen):
    """A panel at the bottom of a terminal; other output scrolls above it."""

    interval = 0.5  # a drawing costs ten milliseconds or so: benchmarks/live.py

    def __init__(self, console: Console, title: str) -> None:
        self._panel = panel.LivePanel(title)
        self._live = Live(
            self._panel,
            console=console,
            auto_refresh=False,
            transient=True,
            # What the user's build prints goes above the panel. If stdout is redirected to a file,
            # it goes to that file instead.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=True,
        )

    def open(self) -> None:  # noqa: D102
        self._live.start(refresh=True)

    def status(self, text: str) -> None:  # noqa: D102
        self._panel.status = text
        self._live.refresh()

    def wait(self, seconds: float) -> None:  # noqa: D102
        self._panel.waited = seconds
        self._live.refresh()

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self._panel.progress = progress
        self._live.refresh()

    def note(self, text: str) -> None:  # noqa: D102
        console = self._live.console
        console.print(f"paceline: {formats.visible(text)}", markup=False, highlight=False)

    def stay(self, progress: Progress) -> None:  # noqa: D102
        self._panel.progress = panel.ended(progress)
        self._live.transient = False

    def close(self, last: Progress | None) -> None:  # noqa: D102
        self._live.stop()
        super().close(last)


class LineScreen(Screen):
    """Plain lines for logs and pipes, one every 30 seconds."""

    interval = 30.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self.note(panel.line(progress))

    def note(self, text: str) -> None:  # noqa: D102
        # One write, since other threads print too.
        self._stream.write(f"paceline: {formats.visible(text)}\n")
        self._stream.flush()


class QuietScreen(LineScreen):
    """Shows notes only, which users must see although they asked for quiet."""

    def draw(self, progress: Progress) -> None:  # noqa: D102
        pass
