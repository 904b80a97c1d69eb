"""A study's folder: which search holds it, and what the folder and its storage must not contain.

The first search on a study holds the study's folder; further searches have folders of their own.

A study's files may come from a stranger, so reading them never runs code: no pickle, no ``eval``,
and only the weights of saved models. Three kinds are refused: links out of its folder (a search
would write there), pipes and devices (readers would wait), pickles (Optuna would load them).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
from optuna.trial import FrozenTrial

from paceline.errors import StorageError, StudyError
from paceline.program.files import as_shown

NAME = ".lock"
#: In a study's folder: its journal, where no other storage is named, and its best models.
JOURNAL, BEST = "journal.log", "best"
#: Optuna's CMA-ES keeps its optimizer, pickled, in attributes whose names begin so.
_PICKLED = ("cma:", "sepcma:", "cmawm:")


@contextlib.contextmanager
def study_lock(folder: Path) -> Iterator[bool]:
    """Hold a study's folder, made if need be, while it is searched; whether this search holds it.

    A process that dies frees its lock.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / NAME)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except (OSError, RuntimeError):  # no folder, or no locks there: the storage tells
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
        if new:
            _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of a search that wrote nothing."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [NAME]:
            (folder / NAME).unlink()
            folder.rmdir()
            folder.parent.rmdir()  # fails, and is suppressed, where it holds other studies


def aside_of(folder: Path) -> Path:
    """Return where the earlier study is kept while a new one begins; no study is called so."""
    return folder.with_name(f".{folder.name}.before")


def at_home(storage: Any) -> Any:
    """Return a storage with its file's path made absolute: the working directory may change."""
    if not isinstance(storage, str):
        return storage
    for begin in ("journal:", "sqlite:///"):
        path = storage.removeprefix(begin).strip()
        relative = path and not path.startswith(("/", "~", ":memory:", "file:"))
        if storage.startswith(begin) and relative:
            return f"{begin}{Path(path).absolute()}"
    return storage


def check_folder(folder: Path) -> None:
    """Refuse a study's folder that holds a link to a place outside, a pipe, a socket, a device."""
    inside = folder.resolve()
    for where, folders, files in os.walk(folder):
        for path in (Path(where, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise StudyError(
                    f"study {folder.name!r}: {path} is a link out of the study's folder. Replace "
                    "the link by its target, or make the whole folder a link."
                )
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                mode = path.stat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise StudyError(
                        f"study {folder.name!r}: {path} is neither a file nor a folder, and "
                        "reading it might never end. Remove it."
                    )


def check_unowned(folder: Path, storage: Any) -> None:
    """Refuse a new study the folder of one of its name in another storage than ``storage``.

    Its models would be taken for stale ones, and its times and the new study's be added up.
    """
    what = "a journal" if storage is not None and (folder / JOURNAL).exists() else None
    if what is None and any((folder / BEST).glob("trial-*")):
        what = "models"
    if what is not None:
        raise StudyError(
            f"study {folder.name!r}: {folder} already holds {what} of a study of that name in "
            "another storage. Use another study name, pass that storage to continue the other "
            "study, or remove the folder."
        )


def check_writable(folder: Path, label: str) -> None:
    """Refuse a folder that is not a folder, or that could not be made or written."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise StorageError(f"storage {label} cannot be opened: {there} is not a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(
            f"storage {label} cannot be opened: no permission to write to the folder {there}. "
            "Choose another."
        )


def check_storage_text(storage: Any) -> None:
    """Refuse control characters in the name of a storage."""
    if isinstance(storage, str) and not storage.isprintable():
        raise StorageError(
            f"storage must not contain control characters, got {ascii(storage)[:200]}. Pass "
            "journal:PATH or an Optuna URL."
        )


def journal_path(storage: str | None, study: str, directory: Path) -> Path | None:
    """Return the journal that a study is kept in; None if its storage is a database."""
    if storage is None:
        return directory / study / "journal.log"
    if not storage.startswith("journal:"):
        return None
    return Path(storage.removeprefix("journal:").strip()).expanduser()


def check_pickles(study: str, trials: Iterable[FrozenTrial]) -> None:
    """Refuse pickles in the attributes of stored trials."""
    for trial in trials:
        if any(key.startswith(_PICKLED) for key in trial.system_attrs):
            raise StorageError(
                f"study {study!r}: its storage holds pickles of Optuna's CMA-ES sampler (trial "
                f"{trial.number}), and reading a pickle can run any code. Paceline does not read "
                "them. Copy the trials to another study with optuna.trial.create_trial, without "
                "their system_attrs."
            )


def raise_renamed(study: str, directory: Path, others: Sequence[str]) -> None:
    """Refuse a folder whose own journal holds other studies only: the folder was renamed."""
    raise StudyError(
        f"study {study!r}: the journal in {as_shown(directory / study)} holds the study "
        f"{others[0]!r}. Was the folder renamed? Rename it back to {others[0]!r}, and use that "
        "study name: its checkpoint and models are in the folder."
    )
