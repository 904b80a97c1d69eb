"""The progress bar and notes of functions that people wrote for another loop."""

from __future__ import annotations

import sys
import time

from paceline.errors import shortened

_WIDTH = 24


class ProgressBar:
    """A progress bar of one line on stderr; outside a terminal, it is printed once, at the end.

    ``noun`` is what the bar counts, in the plural; ``speaker`` begins each note.
    """

    def __init__(self, n_all: int, *, show: bool, noun: str, speaker: str = "paceline") -> None:
        self._n_all, self._show, self._noun, self._speaker = n_all, show, noun, speaker
        self._live = show and sys.stderr.isatty()
        self._began, self._drawn, self._line = time.perf_counter(), 0.0, ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the line of the bar."""
        line, self._line = self._line, ""
        if self._live and line:
            sys.stderr.write("\n")
        elif self._show and line:
            sys.stderr.write(f"{line}\n")

    def show(self, n_done: int, n_left: int, more: str) -> None:
        """Draws the bar; ``n_left`` functions have not begun, and ``more`` is at its end."""
        seconds = time.perf_counter() - self._began
        done = n_done / max(1, n_done + n_left) if n_left else n_done / max(n_done, self._n_all)
        bar = ("#" * int(done * _WIDTH)).ljust(_WIDTH, ".")
        n_all = max(n_done, self._n_all)
        self._line = f"[{bar}] {n_done}/{n_all} {self._noun}, {seconds:.1f} s"
        self._line += f", {more}" if more else ""
        now = time.perf_counter()
        if self._live and now - self._drawn > 0.1:
            self._drawn = now
            sys.stderr.write(f"\r{self._line}\x1b[K")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Prints a note above the bar, also if the bar is hidden."""
        say(text, self._speaker, "\r\x1b[K" if self._live else "")


def say(text: str, speaker: str = "paceline", before: str = "") -> None:
    """Prints a note on stderr, on one line and shortened unless it is a box."""
    if not text.startswith("\n"):
        text = shortened(" ".join(text.split()))  # errors may have many lines
    sys.stderr.write(f"{before}{speaker}: {text}\n")
    sys.stderr.flush()
