"""Screens that show a running search: a terminal, a notebook, a log."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from paceline.report import panel
from paceline.report.progress import Progress


class Screen(ABC):
    """A place that shows a search. Every method may raise; ``LiveView`` ignores the errors."""

    interval: float  # seconds between drawings

    def open(self) -> None:  # noqa: B027 - most screens have nothing to do here
        """Prepare the screen."""

    def status(self, text: str) -> None:  # noqa: B027 - some screens do not show this
        """Show what happens before there is a first record."""

    @abstractmethod
    def draw(self, progress: Progress) -> None:
        """Show the state of the search."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a sentence that stays."""

    def close(self, last_line: str | None) -> None:
        """Leave the screen as it was.

        Args:
            last_line: A line that stays; None: nothing stays.
        """
        if last_line is not None:
            self.note(last_line)


class PanelScreen(Screen):
    """A panel at the bottom of a terminal; other output scrolls above it."""

    interval = 0.25

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

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self._panel.progress = progress
        self._live.refresh()

    def note(self, text: str) -> None:  # noqa: D102
        console = self._live.console
        console.print(f"paceline: {text}", markup=False, highlight=False, soft_wrap=True)

    def close(self, last_line: str | None) -> None:  # noqa: D102
        self._live.stop()
        super().close(last_line)


class LineScreen(Screen):
    """Plain lines for logs and pipes, one a minute."""

    interval = 60.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self.note(panel.line(progress))

    def note(self, text: str) -> None:  # noqa: D102
        self._stream.write(f"paceline: {text}\n")  # one write, since other threads print too
        self._stream.flush()


class QuietScreen(LineScreen):
    """Shows notes only, which users must see although they asked for quiet."""

    def draw(self, progress: Progress) -> None:  # noqa: D102
        pass


class NotebookScreen(LineScreen):
    """One line in the output of a notebook's cell.

    The line is replaced and not repeated, so that a saved notebook stays small.

    Args:
        display: IPython's ``display``.
        stream: The stream for notes.
    """

    interval = 1.0

    def __init__(self, display: Callable[..., Any], stream: TextIO) -> None:
        super().__init__(stream)
        self._display = display
        self._handle: Any = None

    def status(self, text: str) -> None:  # noqa: D102
        self._show(f"paceline: {text}")

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self._show(panel.line(progress))

    def close(self, last_line: str | None) -> None:  # noqa: D102
        if last_line is not None:
            self._show(last_line)

    def _show(self, text: str) -> None:
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
