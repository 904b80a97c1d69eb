"""``paceline list`` and ``delete``, and functions of all commands that read a study.

These functions open a study, and name the command to run next.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import output as terminal
from paceline.cli.options import DIRECTORY, Json, Storage, StudyName, journals
from paceline.errors import PacelineError, StudyError
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.study.view import StudyView

Directory = Annotated[
    Path, typer.Option("--directory", metavar="FOLDER", help="Folder of the studies.")
]


def open_study(name: str, storage: str | None) -> StudyView:
    """Open an existing study to read it; if it is missing, the error lists those in ``runs``."""
    from paceline.study.view import StudyView

    study = StudyView.open(name, storage=storage, directory=DIRECTORY)
    if study is None:
        where = f"in {DIRECTORY}" if storage is None else "in that storage"
        there = [path.parent.name for path in journals(DIRECTORY)]
        hint = f"; {DIRECTORY} has {', '.join(there)}" if there else ""
        raise StudyError(
            f"there is no study {name!r} {where}{hint}. `paceline search` makes one. To look in "
            "another storage, use --storage."
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
    if study.startswith("-"):  # without ``--`` it would be read as an option
        words = [name, *more, *given, "--", study]
    else:
        words = [name, study, *more, *given]
    return join([*_program(), *words])


def _program() -> list[str]:
    """The words that called this command, which may not be on the path."""
    here = Path(__file__).resolve().parents[1] / "__main__.py"
    if sys.argv and Path(sys.argv[0]).resolve() == here:
        return [sys.orig_argv[0], "-m", "paceline"]
    return ["paceline"]


def label(storage: str) -> str:
    """Return a storage's URL without its password."""
    from paceline.study.storage.rdb import label_of  # Optuna loads here

    return label_of(storage)


def list_studies(
    directory: Directory = DIRECTORY, storage: Storage = None, as_json: Json = False
) -> None:
    """List the studies in a folder, or in a storage."""
    records, unreadable = _records(directory, storage)
    if as_json:
        terminal.print_json(
            [*records, *({"study": name, "error": why} for name, why in unreadable.items())]
        )
        return
    lines = [_table(records)] if records else []
    lines += [f"{_shown(name)} cannot be read: {why}" for name, why in unreadable.items()]
    if not lines:
        where = f"in {directory}" if storage is None else "in that storage"
        lines = [f"no studies {where}; `paceline search FILE.py` makes one"]
    terminal.print_result("\n".join(lines))


def delete(
    study: StudyName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    directory: Directory = DIRECTORY,
    storage: Storage = None,
) -> None:
    """Delete a study: its folder and, with --storage, its trials in that storage."""
    from paceline.study.storage.removal import Removal

    found = Removal.of(study, storage, directory)
    parts = []
    if found.folder is not None:
        files = formats.count(found.n_files, "file")
        size = formats.size(found.n_bytes)
        parts.append(f"the folder {found.folder} ({files}, {size})")
    if found.store is not None:
        parts.append(f"its trials in {found.store.label}")
    what = formats.visible(" and ".join(parts))
    if not yes and not _agrees(f"Remove {what}? This cannot be undone."):
        raise terminal.CommandFailed("nothing was removed; use --yes to remove without asking")
    found.carry_out(note=terminal.say)
    terminal.print_result(f"removed {what}")


def _agrees(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # no answer: the end of stdin
        terminal.say_plain("")
        return False


def _records(directory: Path, storage: str | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a record for each study, and for those that cannot be read: name -> reason."""
    from paceline.study.storage.folder import check_storage_text
    from paceline.study.storage.storage import StudyStorage
    from paceline.study.view import StudyView

    check_storage_text(storage)
    if storage is None:
        names = [path.parent.name for path in journals(directory)]
    else:
        names = StudyStorage.of(storage, "", directory).names()
    records, unreadable = [], {}
    for name in names:
        try:
            view = StudyView.open(name, storage=storage, directory=directory)
            if view is not None:
                records.append(_record(view))
        except PacelineError as error:
            unreadable[name] = str(error)
    return records, unreadable


def _record(view: StudyView) -> dict[str, Any]:
    from paceline.study.trials.table import best_record

    best = view.trials.best
    return {
        "study": view.name,
        "n_trials": dict(Counter(trial.state for trial in view.trials)),
        "objective": ", ".join(view.objectives) or objective(view.meta),
        "searched": view.searched,
        "paused": view.paused,
        "best": None if best is None or view.several else best_record(best, view.trials.ties),
        **({"pareto_front": [trial.number for trial in view.trials.front]} if view.several else {}),
    }


def _table(records: list[dict[str, Any]]) -> str:
    from rich.text import Text

    from paceline.report import tables

    table = tables.plain_table()
    table.add_column("study", overflow="fold")
    states = ["complete", "pruned", "failed"]
    if any(record["n_trials"].get("rejected") for record in records):
        states.append("rejected")
    for heading in ("trials", *map(formats.state, states), "unfinished", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("search", no_wrap=True)
    table.add_column("objective", overflow="fold")
    for record in records:
        counts, best = record["n_trials"], record["best"]
        cells = [
            _shown(record["study"]),
            f"{sum(counts.values()):,}",
            *(f"{counts.get(state, 0):,}" for state in states),
            f"{counts.get('running', 0) + counts.get('paused', 0):,}",
            f"Pareto front of {len(record['pareto_front']):,}"
            if record.get("pareto_front")
            else formats.metric(best["value"] if best else None),
            "paused" if record["paused"] else "runs" if record["searched"] else "-",
            _shown(record["objective"]),
        ]
        table.add_row(*map(Text, cells))
    return tables.render(table, terminal.width()).removesuffix("\n")


def _shown(name: str) -> str:
    """Return a name that may come from a stranger, on one line."""
    return formats.visible(name).replace("\n", " ").replace("\t", " ")
