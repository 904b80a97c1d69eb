"""The summary of a run of functions, for its user."""

from __future__ import annotations

import time
from collections import Counter

from paceline.compat.interception import CallOutcome
from paceline.report import formats


class FitSummary:
    """Counts the fits of functions: how many trained in packs, and how many alone."""

    def __init__(self) -> None:
        self.n_ended = 0  # functions
        self._ends: Counter[str] = Counter()  # how functions ended that did not return
        self._plans: Counter[str] = Counter()
        self._programs: set[str] = set()
        self._began = time.monotonic()

    def add(self, outcome: CallOutcome, raised: str = "failed") -> None:
        """Counts a finished function; ``raised`` is the word for one that has raised an error."""
        self.n_ended += 1
        if outcome.error is not None:
            self._ends[raised] += 1
        for fit in outcome.fits:
            self._plans["fit" if fit.program is None else "pack"] += 1
            if fit.program is not None:
                self._programs.add(fit.program)

    def text(self) -> str:
        """Returns the counts in words."""
        packed, alone = self._plans["pack"], self._plans["fit"]
        parts = []
        if packed:
            programs = formats.count(len(self._programs), "program")
            parts.append(f"{formats.count(packed, 'fit')} in packs ({programs})")
        if alone:
            parts.append(f"{formats.count(alone, 'fit')} alone")
        parts += [f"{n} {word}" for word, n in sorted(self._ends.items())]
        return ", ".join(parts)

    def line(self, noun: str) -> str:
        """Returns the summary of the whole run; "" without fits. ``noun`` names a function."""
        if not self._plans:
            return ""
        seconds = time.monotonic() - self._began
        return f"{formats.count(self.n_ended, noun)}, {self.text()}, {seconds:.1f} s"
