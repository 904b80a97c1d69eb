"""What the last ensemble of a study's models is worth, in a file beside the study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from paceline.program.files import write_atomically
from paceline.records import Count, Real
from paceline.study.storage.schema import UNREADABLE

#: The file, in the folder of a study.
_FILE = "ensemble.json"
#: Bytes of it that are read at most.
_MOST_READ = 1_000_000


class EnsembleRecord(Struct, frozen=True):
    """Of which trials an ensemble is, and what it is worth."""

    # Numbers in the order in which they were added, the best single one first; one that comes twice
    # counts twice.
    trials: Annotated[list[Count], Meta(min_length=1)]
    objective: str  # the name of the value
    value: Real  # of the ensemble, on examples that took no part in the selection
    alone: Real  # of the best single model on the same examples
    n_examples: Count  # how many these are


def write_ensemble(folder: Path, record: EnsembleRecord) -> None:
    """Keep a record, in the study's folder, in place of the one before."""
    write_atomically(folder / _FILE, msgspec.json.encode(record))


def read_ensemble(folder: Path) -> EnsembleRecord | None:
    """Return what was kept last in a study's folder; None if nothing can be read."""
    try:
        with (folder / _FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_READ), type=EnsembleRecord)
    except (OSError, *UNREADABLE):
        return None
