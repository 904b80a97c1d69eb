"""``paceline repair``: needs neither JAX nor Keras."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import output as terminal
from paceline.cli import studies
from paceline.cli.options import Json, Storage, StudyName
from paceline.errors import StorageError, StudyError, UsageError

if TYPE_CHECKING:
    from paceline.study.storage.repair import RepairedJournal


def repair(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Repair a study's damaged journal: keep the intact lines, and list the lost ones."""
    from paceline.study.metadata import check_name
    from paceline.study.storage.folder import (
        check_folder,
        check_storage_text,
        journal_path,
        study_lock,
    )

    check_name(study)
    check_storage_text(storage)
    check_folder(studies.DIRECTORY / study)
    path = journal_path(storage, study, studies.DIRECTORY)
    if path is None:
        raise UsageError(
            f"--storage must be a journal, got {studies.label(storage or '')}. To repair a "
            "database, use the tools of that database."
        )
    if not path.is_file():
        raise StudyError(
            f"there is no journal {path}. To repair another one, use --storage journal:PATH."
        )
    with study_lock(studies.DIRECTORY / study) as free:
        if not free:
            raise StudyError(f"study {study!r} is being searched. Stop the search first.")
        found, aside = _repair_file(path, study)
    lost = [{"line": loss.line, "what": loss.what, "reason": loss.reason} for loss in found.losses]
    if as_json:
        aside_text = None if aside is None else str(aside)
        terminal.print_json({"kept": found.n_kept, "lost": lost, "aside": aside_text})
        return
    if aside is None:
        terminal.print_result(f"{path}: all {found.n_kept:,} lines are intact")
        return
    lines = [f"{path}: {found.n_kept:,} lines are kept; the damaged file is {aside}. Lost:"]
    lines += [f"  line {loss.line}: {loss.what} ({loss.reason})" for loss in found.losses]
    terminal.print_result("\n".join(lines))


def _repair_file(path: Path, study: str) -> tuple[RepairedJournal, Path | None]:
    """Return the intact and the lost lines, and the path of the damaged file.

    If nothing was damaged, the path is None, and the journal stays as it was.
    """
    from paceline.program.files import replace_durably, temporary_beside
    from paceline.study.storage.journal import FileLock
    from paceline.study.storage.repair import examine

    try:
        with FileLock(path).held():
            data = path.read_bytes()
            found = examine(data, study)
            if not found.losses:
                return found, None
            aside = _put_aside(path, data)
            with temporary_beside(path) as part:
                part.write_bytes(b"".join(found.lines))
                shutil.copymode(path, part)
                replace_durably(part, path)
    except OSError as error:
        raise StorageError(
            f"could not repair storage journal:{path}: {error.strerror or error}. Check the path, "
            "and whether you may write to the folder."
        ) from None
    return found, aside


def _put_aside(path: Path, data: bytes) -> Path:
    """Write a copy of a file next to it, under a free name."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        with contextlib.suppress(FileExistsError), aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return aside
    raise AssertionError("numbers do not end")
