"""``paceline best``, ``trials``, ``export``, ``repair``: what needs neither JAX nor Keras."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import arguments
from paceline.cli import output as terminal
from paceline.errors import StorageError, StudyError, UsageError
from paceline.program.files import replace_durably, temporary_beside, written_atomically
from paceline.report import formats, selection, summary, tables
from paceline.study.trial import Trial
from paceline.tuner.bundle import load_lines

if TYPE_CHECKING:
    from paceline.study.storage.repair import Repaired
    from paceline.study.view import StudyView

DIRECTORY = Path("runs")
ROWS = 50  # of a table, unless more are asked for
JOURNAL = "journal.log"  # a folder in DIRECTORY that holds this file is the folder of a study


def show_best(name: str, *, storage: str | None, as_json: bool) -> None:
    """Print the best trial of a study, or the front of several objectives.

    Raises:
        StudyError: There is no such study, or no trial of it is complete.
    """
    from paceline.study.trial_codec import best_record, front_record  # loads Optuna

    study = open_study(name, storage)
    if study.several:
        _best(study, storage)  # an error where there is none
        front = [front_record(trial, study.objectives) for trial in study.trials.front]
        if as_json:
            terminal.print_json(front)
        else:
            terminal.print_result(summary.front_text(front, study.objectives))
        return
    best = best_record(_best(study, storage), study.trials.ties)
    if as_json:
        terminal.print_json(best)
        return
    terminal.print_result(summary.best_text(best, objective(study.meta)))


def show_trials(
    name: str,
    *,
    storage: str | None,
    as_csv: bool,
    as_json: bool,
    limit: int | None,
    where: str | None = None,
    sort: str | None = None,
    reverse: bool = False,
) -> None:
    """Print the trials of a study as a table, as CSV or as JSON.

    Args:
        name: The study's name.
        storage: URL of the storage; None for the journal in ``runs``.
        as_csv: Print CSV.
        as_json: Print JSON.
        limit: How many trials, from the first on. None: all in CSV and JSON, and in the table
            ``ROWS`` of them; 0: all.
        where: A condition on columns; None: all trials (``paceline.report.selection``).
        sort: The column to sort by; None: the numbers.
        reverse: Turn the order round.

    Raises:
        UsageError: Both CSV and JSON are asked for, or there is no such column.
        StudyError: There is no such study.
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other; give one")
    study = open_study(name, storage)
    if limit is None:
        limit = 0 if as_csv or as_json else ROWS
    chosen = selection.select(
        study.trials,
        where=where,
        sort=sort,
        reverse=reverse,
        maximize=study.trials.direction != "minimize",
        objective=study.meta.get("objective"),
        objectives=study.objectives,
        directions=study.trials.directions,
    )
    shown = chosen[: limit or None]
    if as_json:
        terminal.print_json([tables.trial_record(trial, study.objectives) for trial in shown])
    elif as_csv:
        terminal.print_data(tables.to_csv(shown, study.objectives).removesuffix("\n"))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        terminal.print_result(_trials_text(study, chosen, shown, width))


def export(
    name: str,
    *,
    storage: str | None,
    output: str | None,
    bundle: str | None,
    trial: int | None = None,
) -> None:
    """Write the saved model of the best trial, or a bundle of it, whole or not at all.

    Args:
        name: The study's name.
        storage: URL of the storage; None for the journal in ``runs``.
        output: The Keras file to write; None: best.keras, where no bundle is asked for.
        bundle: The zip file to write; None: no bundle.
        trial: Number of another trial whose model is saved: with several objectives of one on the
            front, as there is no best trial. None: the best one.

    Raises:
        UsageError: A file cannot be of that name, or cannot be written.
        StudyError: There is no such study or no best trial, or its saved model is gone or damaged.
    """
    if output is None and bundle is None:
        output = "best.keras"
    model = output and arguments.output_file(
        output, (".keras",), "a model's file ends in .keras; give a name such as best.keras"
    )
    zipped = bundle and arguments.output_file(
        bundle, (".zip",), "a bundle's file ends in .zip; give a name such as best.zip", "--bundle"
    )
    study = open_study(name, storage)
    best = _chosen(study, storage, trial)
    saved = _model_file(study, best)
    what = f"trial {best.number}, {_values(study, best)}"
    if best.state != "complete":
        what += f", {formats.reached(best.state, best.epochs, best.best_epoch)}"
    lines = []
    if model:
        write_model(model, partial(shutil.copyfile, saved))
        lines += model_lines(model, f"the model of {what}", study.meta)
    if zipped:
        lines += [f"{zipped}: {what}", *_write_bundle(zipped, study, best, saved)]
    terminal.print_result("\n".join(lines))


def _write_bundle(target: Path, study: StudyView, best: Trial, saved: Path) -> list[str]:
    """Write a bundle; return lines that say what it holds and how to use it."""
    from paceline.tuner.bundle import write_bundle

    try:
        with written_atomically(target) as part:
            manifest = write_bundle(part, study, best, saved, DIRECTORY / study.name)
    except OSError as error:
        raise UsageError(
            f"--bundle {target} cannot be written: {error.strerror or error}"
        ) from error
    folder = shlex.quote(str(target.with_suffix("")))
    missing = [module for module in manifest["modules"] if f"{module}.py" not in manifest["files"]]
    lines = [f"  {', '.join([*manifest['files'], 'manifest.json'])}"]
    if missing:
        lines.append(f"  the model needs {', '.join(missing)} too: put it beside predict.py")
    return [
        *lines,
        "Use it, also on another machine, in an environment of its own:",
        f"  python -m zipfile -e {shlex.quote(str(target))} {folder}",
        f"  python -m venv {folder}/env",
        f"  {folder}/env/bin/pip install -r {folder}/requirements.txt",
        f"  {folder}/env/bin/python {folder}/predict.py DATA.npy",
    ]


def repair(name: str, *, storage: str | None, as_json: bool) -> None:
    """Repair the journal of a study, and print what was lost.

    Raises:
        UsageError: The storage is no journal.
        StudyError: There is no such journal, or a search of the study is under way.
        StorageError: The journal cannot be read or written.
    """
    from paceline.study.metadata import check_name
    from paceline.study.storage.folder import (
        check_folder,
        check_storage_text,
        journal_path,
        study_lock,
    )

    check_name(name)
    check_storage_text(storage)
    check_folder(DIRECTORY / name)
    path = journal_path(storage, name, DIRECTORY)
    if path is None:
        raise UsageError(
            f"--storage {_label(storage or '')}: only a journal has lines to repair; a database "
            "has tools of its own"
        )
    if not path.is_file():
        raise StudyError(f"there is no journal {path}; --storage journal:PATH names another one")
    with study_lock(DIRECTORY / name) as free:
        if not free:
            raise StudyError(f"study {name!r} is being searched; stop the search first")
        found, aside = _repair_file(path, name)
    lost = [{"line": loss.line, "what": loss.what, "reason": loss.reason} for loss in found.losses]
    if as_json:
        aside_text = None if aside is None else str(aside)
        terminal.print_json({"kept": found.n_kept, "lost": lost, "aside": aside_text})
        return
    if aside is None:
        terminal.print_result(f"{path}: all {found.n_kept:,} lines are whole")
        return
    lines = [f"{path}: {found.n_kept:,} lines are kept; the damaged file is {aside}. Lost:"]
    lines += [f"  line {loss.line}: {loss.what} ({loss.reason})" for loss in found.losses]
    terminal.print_result("\n".join(lines))


def _repair_file(path: Path, study: str) -> tuple[Repaired, Path | None]:
    """Repair a journal in its place.

    Returns:
        What is whole and what was lost; and where the damaged file lies now, None where nothing was
        damaged.
    """
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
            f"storage journal:{path} cannot be repaired: {error.strerror or error}. Check the "
            "path, and that the folder may be written."
        ) from None
    return found, aside


def _put_aside(path: Path, data: bytes) -> Path:
    """Write a copy of a file beside it, under a name that is free."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        with contextlib.suppress(FileExistsError), aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return aside
    raise AssertionError("numbers do not end")


def open_study(name: str, storage: str | None) -> StudyView:
    """Open an existing study to read it.

    Raises:
        StudyError: There is no study of that name; the message lists the studies in ``runs``.
        StorageError: The storage cannot be opened.
    """
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
    """Return what a study remembers of its search.

    Raises:
        StudyError, StorageError: As from ``open_study``.
    """
    from paceline.study.view import meta_in_journal

    found = meta_in_journal(name, storage=storage, directory=DIRECTORY)
    return open_study(name, storage).meta if found is None else found


def objective(meta: Mapping[str, Any]) -> str:
    """Return the name of a study's objective; "value" for a study of another program."""
    return meta.get("objective") or "value"


def command(name: str, study: str, storage: str | None, *more: str) -> str:
    """Return a ``paceline`` command about a study, ready to be pasted into a shell.

    A storage URL that holds a password is not repeated.

    Args:
        name: Name of the command, such as "resume".
        study: Name of the study.
        storage: URL of the storage; None for the journal in ``runs``.
        *more: Further words.
    """
    if storage is None:
        given = []
    else:
        given = ["--storage", "URL" if _label(storage) != storage else storage]
    if study.startswith("-"):  # else it would be taken for an option
        words = [name, *more, *given, "--", study]
    else:
        words = [name, study, *more, *given]
    return shlex.join([*_program(), *words])


def _program() -> list[str]:
    """The words by which this command was called: it may not be on the path."""
    here = Path(__file__).resolve().parents[1] / "__main__.py"
    if sys.argv and Path(sys.argv[0]).resolve() == here:
        return [sys.orig_argv[0], "-m", "paceline"]
    return ["paceline"]


def _label(storage: str) -> str:
    from paceline.study.storage.rdb import label_of  # Optuna loads here

    return label_of(storage)


def _best(study: StudyView, storage: str | None) -> Trial:
    best = study.best
    if best is None:
        resume = command("resume", study.name, storage)
        some = any(trial.value is not None and trial.violates for trial in study.trials)
        lacks = "a value that violates no constraint" if some else "been validated for an epoch yet"
        n = formats.count(len(study.trials), "trial")
        raise StudyError(f"study {study.name!r}: none of {n} has {lacks}; go on with: {resume}")
    return best


def _chosen(study: StudyView, storage: str | None, number: int | None) -> Trial:
    """Return the trial of a number; without one the best trial.

    Raises:
        StudyError: There is no such trial, or none is the best.
    """
    if number is not None:
        return study.trials.by_number(number)
    best = _best(study, storage)
    if study.several:
        front = study.trials.front
        raise StudyError(
            f"study {study.name!r} has the objectives {', '.join(study.objectives)}, and of "
            "several there is no best trial; choose one of the front: --trial "
            f"{' or '.join(str(each.number) for each in front[:20])}"
        )
    return best


def _values(study: StudyView, trial: Trial) -> str:
    if not trial.values:
        return f"{objective(study.meta)} {formats.metric(trial.value)}"
    pairs = zip(study.objectives, trial.values, strict=True)
    return ", ".join(f"{name} {formats.objective(name, value)}" for name, value in pairs)


def _trials_text(
    study: StudyView, chosen: Sequence[Trial], shown: Sequence[Trial], width: int | None
) -> str:
    best = study.trials.best
    marked = {best.number} if best is not None else set[int]()
    if study.several:
        marked = {trial.number for trial in study.trials.front}
    lines = [f"none of the {len(study.trials):,} trials is like that"]
    if shown or not study.trials:
        text = tables.trials_table(shown, best=marked, width=width, objectives=study.objectives)
        lines = [text.removesuffix("\n"), *_failures(shown)]
    if any(trial.state == "pruned" for trial in shown):
        lines.append("pruned: stopped early")
    lines += _under_way(study, shown)
    if study.several and marked:
        n_shown = sum(trial.number in marked for trial in shown)
        more = f"; {len(marked) - n_shown:,} more" if n_shown < len(marked) else ""
        lines.append(f"* on the front{more}: `paceline best {study.name}` lists it")
    elif best is not None and best in shown:
        lines.append(f"* best {objective(study.meta)}")
    elif best is not None:
        value = formats.metric(best.value)
        lines.append(f"best {objective(study.meta)}: {value}, trial {best.number}")
    if (left := len(chosen) - len(shown)) > 0:
        lines.append(f"{left:,} more trials: --limit N shows N, --all shows all")
    return "\n".join(lines)


def _under_way(study: StudyView, trials: Sequence[Trial]) -> list[str]:
    """Say what has become of trials that are neither trained now nor ended."""
    if not any(trial.state in ("running", "paused") for trial in trials):
        return []
    if study.paused:
        return [f"the study is paused: `paceline pause {study.name} --off` goes on"]
    if study.searched is False:
        return [
            "running: under way when the search ended; "
            f"`paceline resume {study.name}` goes on with such trials"
        ]
    return []


def _failures(trials: Sequence[Trial]) -> list[str]:
    whys = ((trial, trial.error if trial.state == "failed" else trial.rejected) for trial in trials)
    return [f"trial {trial.number} {trial.state}: {why}" for trial, why in whys if why]


def _model_file(study: StudyView, best: Trial) -> Path:
    from paceline.tuner.checkpoint.best_models import find_saved

    folder = DIRECTORY / study.name
    path = find_saved(folder, study.meta.get("id", ""), best.number, best.value)
    if path is None or path.suffix != ".keras":
        raise StudyError(
            f"the model of trial {best.number} is not in {folder / 'best'}, or it was changed "
            "there; models are written when a search ends and now and then before. Run the command "
            "in the folder where the search ran, or train it again: "
            "build(paceline.HyperParameters(values=...)) with what `paceline best` prints"
        )
    return path


def write_model(target: Path, write: Callable[[Path], object]) -> None:
    """Write a model's file, whole or not at all.

    Args:
        target: The file.
        write: Writes it to the path that it is given.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        with written_atomically(target) as part:
            write(part)
    except OSError as error:
        raise UsageError(f"-o {target} cannot be written: {error.strerror or error}") from error


def model_lines(model: Path, what: str, meta: Mapping[str, Any]) -> list[str]:
    """Return lines that say what a model's file holds, and how to load it."""
    head = f"{model}: {what}. Load it in Python:"
    return [head, *(f"  {line}" for line in load_lines(str(model), meta))]
