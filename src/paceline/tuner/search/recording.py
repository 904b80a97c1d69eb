"""Records what a search does: when, for reports; and at this moment, for a dashboard."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from paceline.program.files import write_atomically
from paceline.records import SlotStay
from paceline.report.progress import LATELY, LIVE, WATCHED, LivePack, LiveSlot, LiveState, Progress
from paceline.study.timeline import (
    SUFFIX,
    TIMELINE,
    Forecast,
    SearchBegun,
    Spent,
    TimelineRecord,
)
from paceline.study.trials.trial import Trial
from paceline.tuner.search.context import SearchContext

#: Bytes that a search writes at most, so that a long one does not fill the disk: 100,000 stays.
MOST_BYTES = 16_000_000


class TimelineFile:
    """The file of one search; ``name`` tells a study's searches apart, and sorts them by time.

    A disk that cannot be written costs the file, and never the search: the reason is kept in
    ``error``, and nothing more is written.
    """

    def __init__(self, folder: Path, name: str, begun: SearchBegun) -> None:
        self._path = folder / TIMELINE / f"{name}{SUFFIX}"
        self._waiting: list[bytes] = [msgspec.json.encode(begun)]
        self._bytes = 0
        self.error: str | None = None

    def write(self, records: Iterable[TimelineRecord]) -> None:
        """Append records; the file is made with the first of them."""
        self._waiting += [msgspec.json.encode(record) for record in records]
        if self.error is not None or not self._waiting:
            self._waiting.clear()
            return
        data = b"".join(line + b"\n" for line in self._waiting)
        self._waiting.clear()
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            self.error = f"the file would be larger than {MOST_BYTES:,} bytes"
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # In one piece, without a buffer: a process that is killed leaves at most one cut line.
            with self._path.open("ab", buffering=0) as file:
                file.write(data)
        except OSError as error:
            self.error = error.strerror or str(error)


class TimelineRecorder:
    """Writes the timeline of one search, every few seconds and at its end."""

    #: Seconds between two writes: what a process that is killed leaves out at most.
    EVERY = 10.0

    def __init__(self, context: SearchContext, devices: str | None) -> None:
        self._study, self._packs = context.study, context.packs
        self._members, self._notes = context.members, context.notes
        self._began, self._written = context.began, time.perf_counter()
        self._folder, self._devices = context.folder, devices
        # A searcher's files are its own: a KerasTuner project holds what KerasTuner writes there.
        self._wanted = context.study.strategy.resumable
        self._file: TimelineFile | None = None
        # A stay is written under its trial's number at that time. Numbers that a storage has not
        # confirmed may change, and so does the trial's record.
        self._stays: list[tuple[Trial, SlotStay]] = []
        self._records: list[TimelineRecord] = []
        self._known: set[int] = set()  # steps whose compile is recorded

    def fit_ended(self, number: int, began: float) -> None:
        """Records that Keras' ``fit`` has trained a trial, from ``began`` until now."""
        trial = self._study.trials.get(number)
        if trial is not None and trial.epochs:
            stay = SlotStay(
                number, 0, 0, self._moment(began), self._moment(), trial.epochs, plan="fit"
            )
            self._stays.append((trial, stay))

    def collect(self, *, all_ended: bool = False) -> None:
        """Takes over what the packs have noted; called after each round."""
        if self._packs is None:
            return
        stays, packs = self._packs.timeline.take(all_ended=all_ended)
        for made in packs:
            made.began = self._moment(made.began)
            self._records.append(made)
        for stay in stays:
            trial = self._study.trials.get(self._members.trial_of(stay.trial))
            if trial is not None:
                stay.began, stay.ended = self._moment(stay.began), self._moment(stay.ended)
                self._stays.append((trial, stay))

    @property
    def due(self) -> bool:
        """Whether it is time to write, and all trials have their numbers."""
        return (
            time.perf_counter() - self._written >= self.EVERY and not self._study.writer.unnumbered
        )

    def write(self, summary: Mapping[str, Any], seconds_left: float | None) -> None:
        """Writes what was collected; ``seconds_left`` counts from now, None: not known."""
        self._written = time.perf_counter()
        if seconds_left is not None:
            self._records.append(Forecast(self._moment(), max(0.0, seconds_left)))
        self._records.append(self._spent(summary))
        self._write()

    def finish(self, summary: Mapping[str, Any], *, finished: bool) -> None:
        """Writes the rest; ``finished``: the search has come to its end, and was not stopped."""
        self.collect(all_ended=True)
        self._records.append(self._spent(summary, finished=finished))
        self._write()

    def _spent(self, summary: Mapping[str, Any], *, finished: bool = False) -> Spent:
        programs = {k: v for k, v in summary["programs"].items() if isinstance(v, int)}
        seconds = {
            **{name: float(value) for name, value in summary["seconds"].items()},
            "checkpoint": float(summary["checkpoint_seconds"]),
        }
        why = (summary["ended"] or {}).get("text") or None
        return Spent(self._moment(), seconds, programs, summary["slots_busy"], finished, why)

    def _write(self) -> None:
        if not self._wanted:
            self._records.clear()
            self._stays.clear()
            return
        if self._packs is not None:
            for key, step in self._packs.compiled_steps().items():
                if key not in self._known:
                    self._known.add(key)
                    began, ended = self._moment(step.began), self._moment(step.ended)
                    self._records.append(msgspec.structs.replace(step, began=began, ended=ended))
        for trial, stay in self._stays:
            stay.trial = trial.number
        records = [*self._records, *(stay for _, stay in self._stays)]
        self._records.clear()
        self._stays.clear()
        if self._file is None:
            at = time.time() - self._moment()
            name = f"{at:.0f}-{secrets.token_hex(4)}"
            self._file = TimelineFile(self._folder, name, SearchBegun(at, devices=self._devices))
        before = self._file.error
        self._file.write(records)
        if self._file.error is not None and before is None:
            self._notes(
                f"the slot timeline of this search is no longer recorded: {self._file.error}. "
                "Trials still are"
            )

    def _moment(self, at: float | None = None) -> float:
        """A moment of ``time.perf_counter`` in seconds since the search began."""
        at = time.perf_counter() if at is None else at
        return round(max(0.0, at - self._began), 4)


def is_watched(folder: Path) -> bool:
    """Whether somebody has looked lately."""
    try:
        return time.time() - (folder / WATCHED).stat().st_mtime < LATELY
    except OSError:
        return False


def write_live(folder: Path, state: LiveState) -> None:
    """Replace the file; an unwritable disk costs the view, not the search."""
    with contextlib.suppress(OSError):
        write_atomically(folder / LIVE, msgspec.json.encode(state))


class LiveWriter:
    """Writes the state of one search once a second, where somebody looks."""

    #: Seconds between two looks whether somebody looks.
    EVERY = 1.0

    def __init__(self, context: SearchContext) -> None:
        self._study, self._packs = context.study, context.packs
        self._trials, self._members = context.trials, context.members
        self._folder, self._looked = context.folder, -math.inf
        self._notes: deque[str] = context.said
        self._written = False

    @property
    def due(self) -> bool:
        """Whether it is time to write, and somebody looks."""
        now = time.perf_counter()
        if now - self._looked < self.EVERY:
            return False
        self._looked = now
        return is_watched(self._folder)

    def write(self, progress: Progress) -> None:
        """Writes the search at this moment."""
        self._written = True
        packs = [] if progress.phase == "done" else self._live_packs()
        shown = replace(progress, rows=(), workers=())
        write_live(self._folder, LiveState(time.time(), shown, packs, list(self._notes)))

    def finish(self, progress: Callable[[str], Progress]) -> None:
        """Writes that the search has ended, if anything was written."""
        if self._written:
            self.write(progress("done"))

    def _live_packs(self) -> list[LivePack]:
        if self._packs is None:
            return []
        return [
            LivePack(program, plan, [self._slot(job) for job in jobs])
            for program, plan, jobs in self._packs.slots_now()
        ]

    def _slot(self, job: int | None) -> LiveSlot | None:
        if job is None:
            return None
        number = self._members.trial_of(job)
        running, trial = self._trials.running.get(number), self._study.trials.get(number)
        if running is None or trial is None:
            return None
        return LiveSlot(number, trial.epochs, running.epochs, trial.value)
