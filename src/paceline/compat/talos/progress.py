"""The progress bar of a scan."""

from __future__ import annotations

import sys
import time
from typing import Any

_WIDTH = 24


class ProgressBar:
    """A progress bar of one line on stderr; outside a terminal, it is printed once, at the end."""

    def __init__(self, n_all: int, *, show: bool) -> None:
        self._n_all, self._show = n_all, show
        self._live = show and sys.stderr.isatty()
        self._began, self._drawn, self._line = time.perf_counter(), 0.0, ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live and self._line:
            sys.stderr.write("\n")
        elif self._show and self._line:
            sys.stderr.write(self._line + "\n")

    def show(self, n_done: int, n_left: int, more: str) -> None:
        """Draws the bar where ``n_left`` permutations have not begun; ``more`` is at its end."""
        seconds = time.perf_counter() - self._began
        done = n_done / max(1, n_done + n_left) if n_left else n_done / max(n_done, self._n_all)
        bar = ("#" * int(done * _WIDTH)).ljust(_WIDTH, ".")
        n_all = max(n_done, self._n_all)
        self._line = f"[{bar}] {n_done}/{n_all} permutations, {seconds:.1f} s"
        self._line += f", {more}" if more else ""
        now = time.perf_counter()
        if self._live and now - self._drawn > 0.1:
            self._drawn = now
            sys.stderr.write(f"\r{self._line}\x1b[K")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Prints a note above the bar, also where the bar is not shown."""
        clear = "\r\x1b[K" if self._live else ""
        say(text, clear)


def say(text: str, before: str = "") -> None:
    """Prints a note on stderr, on one line unless it is a box."""
    text = text if text.startswith("\n") else " ".join(text.split())  # errors may have many lines
    sys.stderr.write(f"{before}talos: {text}\n")
    sys.stderr.flush()
