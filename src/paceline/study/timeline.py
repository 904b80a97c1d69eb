"""What a search did when, in files beside its study.

The storage of a study holds its trials. These files hold what only reports show: which trial was in
which slot when, when programs were compiled, and what took the time. A study without these files,
or with damaged ones, is whole. Each search has a file of its own, with a line for each fact.

Notation
    Moments are in seconds since the search began; ``SearchBegun.at`` is Unix time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from paceline.records import Count, Moment, PackCreated, SlotStay, StepCompiled, Text
from paceline.study.storage.schema import UNREADABLE

#: The folder of these files, in the folder of a study.
TIMELINE = "timeline"
#: Version of what the files hold.
FORMAT = 1
#: Bytes that are read of a study's files at most.
_MOST_READ = 64_000_000
#: How their names end.
SUFFIX = ".jsonl"


class SearchBegun(Struct, tag_field="kind", tag="search"):
    """A search began; the first line of each file."""

    at: Moment
    format: Count = FORMAT
    devices: Text = None


class Forecast(Struct, tag_field="kind", tag="forecast"):
    """The seconds that were predicted to be left at a moment."""

    at: Moment
    left: Moment


class Spent(Struct, tag_field="kind", tag="spent"):
    """What the search had spent until a moment; the last line of this kind counts."""

    at: Moment
    seconds: dict[str, float]
    programs: dict[str, Count] = {}
    slots_busy: float | None = None
    finished: bool = False
    why: Text = None  # what ended the search, in words; None if it says no more than finished


TimelineRecord = SearchBegun | SlotStay | PackCreated | StepCompiled | Forecast | Spent


@dataclass
class SearchTimeline:
    """What one search did; its records are in the order of the file."""

    begun: SearchBegun
    stays: list[SlotStay] = field(default_factory=list)
    packs: list[PackCreated] = field(default_factory=list)
    compiled: list[StepCompiled] = field(default_factory=list)
    forecasts: list[Forecast] = field(default_factory=list)
    spent: Spent | None = None  # at the last time that it said so
    cut: bool = False  # something is missing: a damaged line, or a search that wrote no more

    @property
    def seconds(self) -> float:
        """Seconds from its beginning to the last that is known of it."""
        known = [0.0, *(stay.ended for stay in self.stays), *(c.ended for c in self.compiled)]
        return max(*known, 0.0 if self.spent is None else self.spent.at)

    def add(self, record: Any) -> None:
        """Add a record of the file."""
        match record:
            case SlotStay():
                self.stays.append(record)
            case PackCreated():
                self.packs.append(record)
            case StepCompiled():
                self.compiled.append(record)
            case Forecast():
                self.forecasts.append(record)
            case Spent():
                self.spent = record


def read_timelines(folder: Path) -> list[SearchTimeline]:
    """Return what can be read of what the searches on a study did, by its folder, in order."""
    decoder = msgspec.json.Decoder(TimelineRecord)
    found, n_bytes = [], 0
    try:
        paths = sorted(p for p in (folder / TIMELINE).glob(f"*{SUFFIX}") if p.is_file())
    except OSError:
        return []
    for path in paths:
        try:
            n_bytes += path.stat().st_size
            if n_bytes > _MOST_READ:
                break
            lines = path.read_bytes().splitlines()
        except OSError:
            continue
        timeline = _timeline_of(lines, decoder)
        if timeline is not None:
            found.append(timeline)
    return sorted(found, key=lambda timeline: timeline.begun.at)


def _timeline_of(
    lines: list[bytes], decoder: msgspec.json.Decoder[TimelineRecord]
) -> SearchTimeline | None:
    timeline: SearchTimeline | None = None
    cut = False
    for line in lines:
        try:
            record = decoder.decode(line)
        except UNREADABLE:
            cut = True
            continue
        if isinstance(record, SearchBegun):
            if record.format > FORMAT:
                return None
            timeline = SearchTimeline(record) if timeline is None else timeline
        elif timeline is not None:
            timeline.add(record)
    if timeline is not None:
        timeline.cut = cut or timeline.spent is None or not timeline.spent.finished
    return timeline
