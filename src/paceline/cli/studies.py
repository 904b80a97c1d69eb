"""The studies that commands are about, and the command lines that say what to do with one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StudyError

if TYPE_CHECKING:
    from paceline.study.view import StudyView

DIRECTORY = Path("runs")
JOURNAL = "journal.log"  # a folder in DIRECTORY that holds this file is the folder of a study


def open_study(name: str, storage: str | None) -> StudyView:
    """Open an existing study to read it; if it is missing, the error lists those in ``runs``."""
    from paceline.study.view import StudyView

    study = StudyView.open(name, storage=storage, directory=DIRECTORY)
    if study is None:
        where = f"in {DIRECTORY}" if storage is None else "in that storage"
        there = sorted(path.parent.name for path in DIRECTORY.glob(f"[!.]*/{JOURNAL}"))
        hint = f"; {DIRECTORY} has {', '.join(there)}" if there else ""
        raise StudyError(
            f"there is no study {name!r} {where}{hint}. `paceline search` makes one; --storage "
            "names another place to look"
        )
    return study


def study_meta(name: str, storage: str | None) -> Mapping[str, Any]:
    """Return what a study remembers of its search; raises what ``open_study`` raises."""
    from paceline.study.view import meta_in_journal

    found = meta_in_journal(name, storage=storage, directory=DIRECTORY)
    return open_study(name, storage).meta if found is None else found


def objective(meta: Mapping[str, Any]) -> str:
    """Return the name of a study's objective; "value" for a study of another program."""
    return meta.get("objective") or "value"


def command(name: str, study: str, storage: str | None, *more: str) -> str:
    """Return a ``paceline`` command about a study, with further words, to be pasted into a shell.

    A storage URL that holds a password is not repeated.
    """
    from shlex import join

    if storage is None:
        given = []
    else:
        given = ["--storage", "URL" if label(storage) != storage else storage]
    if study.startswith("-"):  # else it would be taken for an option
        words = [name, *more, *given, "--", study]
    else:
        words = [name, study, *more, *given]
    return join([*_program(), *words])


def _program() -> list[str]:
    """The words by which this command was called: it may not be on the path."""
    here = Path(__file__).resolve().parents[1] / "__main__.py"
    if sys.argv and Path(sys.argv[0]).resolve() == here:
        return [sys.orig_argv[0], "-m", "paceline"]
    return ["paceline"]


def label(storage: str) -> str:
    """Return a storage's URL without its password."""
    from paceline.study.storage.rdb import label_of  # Optuna loads here

    return label_of(storage)
