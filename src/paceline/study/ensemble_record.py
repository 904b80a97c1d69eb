"""What the last ensemble of a study's models is worth, in a file beside the study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from paceline.program.files import write_atomically
from paceline.study.storage.schema import UNREADABLE, Count, Real

#: The file, in the folder of a study.
_FILE = "ensemble.json"
#: Bytes of it that are read at most.
_MOST_READ = 1_000_000


class EnsembleRecord(Struct, frozen=True):
    """Of which trials an ensemble is, and what it is worth.

    Attributes:
        trials: Their numbers in the order in which they were added, the best single one first; one
            that comes twice counts twice.
        objective: The name of the value.
        value: The objective of the ensemble, on examples that took no part in the selection.
        alone: That of the best single model on the same examples.
        n_examples: How many these are.
    """

    trials: Annotated[list[Count], Meta(min_length=1)]
    objective: str
    value: Real
    alone: Real
    n_examples: Count


def write_ensemble(folder: Path, record: EnsembleRecord) -> None:
    """Keep a record in place of the one before.

    Args:
        folder: The study's folder.
        record: What is kept.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(folder / _FILE, msgspec.json.encode(record))


def read_ensemble(folder: Path) -> EnsembleRecord | None:
    """Return what was kept last; None where there is nothing, or nothing that can be read.

    Args:
        folder: The study's folder.
    """
    try:
        with (folder / _FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_READ), type=EnsembleRecord)
    except (OSError, *UNREADABLE):
        return None
