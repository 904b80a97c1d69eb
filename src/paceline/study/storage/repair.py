"""What of a damaged journal is whole, and what was lost; ``paceline repair`` writes it.

Studies and trials have no ids in a journal: they are numbered by the lines that create them. So a
failed trial replaces a lost line that created a trial, which keeps later records with their trials.
A line that is missing altogether shows in two ways. A record belongs to a trial that no line
creates, or the seed of a later trial is that of another number. The text of a damaged line mostly
shows its kind, by its fields. Where the text does not tell, the lines after it cannot be numbered,
and are set aside.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from paceline.study.metadata import META
from paceline.study.samplers.values import n_missing
from paceline.study.storage import schema
from paceline.study.storage.journal import DamagedLineError, line_of, record_of
from paceline.study.storage.journal_storage import JournalReplay

#: Kinds of records: what they are, and the fields that a line of the kind has.
_KINDS: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("the beginning of a study", ("study_name", "directions")),
    2: ("an attribute of the study", ("study_id", "user_attr")),
    3: ("an attribute of the study", ("study_id", "system_attr")),
    4: ("the beginning of a trial", ("study_id", "datetime_start")),
    5: ("a parameter", ("trial_id", "param_name")),
    6: ("the end", ("trial_id", "state")),
    7: ("the value of an epoch", ("trial_id", "intermediate_value")),
    8: ("an attribute", ("trial_id", "user_attr")),
    9: ("an attribute", ("trial_id", "system_attr")),
}
_CREATE_STUDY, _CREATE_TRIAL = 0, 4
_BEGIN = b'{"op_code":'
_OPERATION = re.compile(rb'"op_code": ?(\d+)[,}]')
_TRIAL = re.compile(rb'"trial_id": ?(\d+)[,}]')
_STUDY = re.compile(rb'"study_id": ?(\d+)[,}]')
#: The error of a trial that stands for one whose beginning was lost.
LOST = "lost: the line of the journal that began this trial was damaged"


@dataclass(frozen=True)
class LostRecords:
    """What a journal no longer holds."""

    line: int  # its number in the damaged file, from 1
    what: str  # was lost
    reason: str  # what is wrong with the line


@dataclass
class RepairedJournal:
    """A journal without what was damaged."""

    # The intact lines, and those that replace lost beginnings.
    lines: list[bytes] = field(default_factory=list)
    losses: list[LostRecords] = field(default_factory=list)  # in the order of the file
    n_kept: int = 0  # lines of the file


def examine(data: bytes, study: str) -> RepairedJournal:
    """Return the intact and the lost records of a study's journal; writes nothing."""
    lines = data.split(b"\n")
    half = lines.pop()
    examination = _JournalRepair(lines, study)
    examination.run()
    if half:
        examination.lose(len(lines) + 1, "half a line at the end", "it does not end")
    return examination.found


#: Most trials in a row without any line, unless the journal has more lines. A higher number is
#: itself damaged. Each of them gets a line, and any number would fill the disk.
MOST_MISSING = 1000


class _UndecidedLineError(Exception):
    """What a line was cannot be told."""


class _JournalRepair:
    """Reads a journal line by line, and decides what becomes of each."""

    def __init__(self, lines: Sequence[bytes], study: str) -> None:
        self._lines, self._study = lines, study
        self._replay = JournalReplay()
        self.found = RepairedJournal()

    def run(self) -> None:
        """Read all lines."""
        cut = False  # whether the line before ended in the middle
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            if cut and not line.startswith(b"{"):
                self.lose(number, "the rest of the line before", "it contains a line break")
                cut = not line.endswith(b"}")
                continue
            try:
                whole = True
                for piece in _pieces(line):
                    whole &= self._take(piece, number)
            except _UndecidedLineError as error:
                n = len(self._lines) - number + 1
                rest = f"this line and the {n - 1:,} after it" if n > 1 else "this line"
                self.lose(number, rest, f"{error}, so records after it cannot be numbered")
                return
            cut = not whole and not line.endswith(b"}")

    def lose(self, line: int, what: str, reason: str) -> None:
        """Note what was lost."""
        self.found.losses.append(LostRecords(line, what, reason))

    def _take(self, piece: bytes, number: int) -> bool:
        """Keep a line, or what stands for it; return whether it was whole."""
        line = piece + b"\n"
        try:
            record = record_of(line)
            self._fill_gaps(record, number)
            self._replay.apply(line)
        except DamagedLineError as error:
            self._replace(piece, number, error.reason)
            return False
        self.found.lines.append(line)
        self.found.n_kept += 1
        return True

    def _replace(self, piece: bytes, number: int, reason: str) -> None:
        """Drop a damaged line; put something in its place where others are numbered by it."""
        kind = _kind_of(piece)
        what, _ = _KINDS[kind]
        if kind == _CREATE_STUDY:
            self._begin_study(number, reason)
        elif kind == _CREATE_TRIAL:
            self._begin_trial(self._study_of(piece), number, reason)
        else:
            trial = _TRIAL.search(piece)
            self.lose(number, f"{what}{f' of trial {int(trial[1])}' if trial else ''}", reason)

    def _fill_gaps(self, record: Any, number: int) -> None:
        """Put in what a record shows to be missing before it."""
        study = getattr(record, "study_id", None)
        if study == 0 and not self._replay.n_studies:
            self._begin_study(number, "no line begins the study")
        if study is not None and study >= self._replay.n_studies:
            raise _UndecidedLineError(f"it is of study {study}, which no line begins")
        n_missing = getattr(record, "trial_id", -1) - len(self._replay.trials) + 1
        if n_missing > max(MOST_MISSING, len(self._lines)):
            raise DamagedLineError(
                f"it is of trial {record.trial_id}, and the journal has {len(self._lines):,} lines"
            )
        for _ in range(n_missing):
            why = f"this line is of trial {record.trial_id}, which no line begins"
            self._begin_trial(self._only_study(), number, why)
        if isinstance(record, schema.CreateTrial):
            for _ in range(self._n_missing(record)):
                why = "the seed of the trial of this line is that of a later number"
                self._begin_trial(record.study_id, number, why)

    def _n_missing(self, record: schema.CreateTrial) -> int:
        study = self._replay.studies.get(record.study_id)
        if study is None:
            return 0
        seed = study.user_attrs.get(META, {}).get("seed")
        return n_missing(seed, len(study.trials), record.user_attrs)

    def _begin_study(self, number: int, reason: str) -> None:
        """Begin the study again, by its name and by what describes it later."""
        if self._replay.n_studies:
            raise _UndecidedLineError("it began another study")
        for line in self._lines[number - 1 :]:
            if b'"direction"' not in line:
                continue
            try:
                record = record_of(line)
            except DamagedLineError:
                continue
            meta = getattr(record, "user_attr", {}).get(META)
            direction = meta.get("direction") if isinstance(meta, dict) else None
            several = meta.get("directions") if isinstance(meta, dict) else None
            found = several if isinstance(several, list) and several else [direction]
            if all(each in ("maximize", "minimize") for each in found):
                directions = [2 if each == "maximize" else 1 for each in found]
                self._put({"op_code": 0, "study_name": self._study, "directions": directions})
                self.lose(number, "the beginning of the study, which is written again", reason)
                return
        raise _UndecidedLineError("it began the study, and nothing else tells its direction")

    def _begin_trial(self, study: int, number: int, reason: str) -> None:
        """Put a failed trial in the place of one whose beginning was lost."""
        now = datetime.now(tz=UTC).isoformat(timespec="microseconds")
        self._put(
            {
                "op_code": 4,
                "study_id": study,
                "datetime_start": now,
                "datetime_complete": now,
                "state": 3,
                "user_attrs": {"hparams": {}, "error": LOST},
            }
        )
        trial = self._replay.trials[-1].number
        self.lose(number, f"trial {trial}, which now counts as failed", reason)

    def _put(self, record: dict[str, Any]) -> None:
        line = line_of({"worker_id": "paceline-repair", **record})
        self._replay.apply(line)
        self.found.lines.append(line)

    def _study_of(self, piece: bytes) -> int:
        match = _STUDY.search(piece)
        if match is not None and int(match[1]) in self._replay.studies:
            return int(match[1])
        return self._only_study()

    def _only_study(self) -> int:
        if len(self._replay.studies) != 1:
            raise _UndecidedLineError("it began a trial of one of several studies")
        return next(iter(self._replay.studies))


def _kind_of(piece: bytes) -> int:
    """Returns the kind of a damaged line's record; _UndecidedLineError where it cannot be told."""
    match = _OPERATION.search(piece)
    said = int(match[1][:3]) if match is not None else None
    fits = [
        kind
        for kind, (_, fields) in _KINDS.items()
        if all(b'"%s":' % name.encode() in piece for name in fields)
    ]
    if len(fits) == 1:
        return fits[0]
    if said in fits or (not fits and said in _KINDS):
        assert said is not None
        return said
    raise _UndecidedLineError("the kind of this line is unknown")


def _pieces(line: bytes) -> Iterator[bytes]:
    """Yield the records of a line: several where a line break was lost."""
    starts = [match.start() for match in re.finditer(re.escape(_BEGIN), line)]
    if len(starts) < 2:
        yield line
        return
    starts[0] = 0
    for start, end in itertools.pairwise([*starts, len(line)]):
        piece = line[start:end]
        try:
            text = piece.decode()
            yield text[: json.JSONDecoder().raw_decode(text)[1]].encode()
        except (ValueError, RecursionError):
            yield piece
