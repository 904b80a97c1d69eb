"""``paceline best``, ``trials`` and ``export``: read a study, without JAX or Keras."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import arguments
from paceline.cli import output as terminal
from paceline.errors import StudyError, UsageError
from paceline.program.files import written_atomically
from paceline.report import formats, summary, tables
from paceline.study.trial import Trial

if TYPE_CHECKING:
    from paceline.study.study import Study

DIRECTORY = Path("runs")
JOURNAL = "journal.log"  # a folder in DIRECTORY that holds this file is the folder of a study


def show_best(name: str, *, storage: str | None, as_json: bool) -> None:
    """Print the best trial of a study.

    Raises:
        StudyError: There is no such study, or no trial of it is complete.
    """
    study = open_study(name, storage)
    best = tables.best_record(_best(study, storage))
    if as_json:
        terminal.print_json(best)
        return
    terminal.print_result(summary.best_text(best, objective(study.metadata.meta)))


def show_trials(name: str, *, storage: str | None, as_csv: bool, as_json: bool) -> None:
    """Print every trial of a study as a table, as CSV or as JSON.

    Raises:
        UsageError: Both CSV and JSON are asked for.
        StudyError: There is no such study.
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other; give one")
    study = open_study(name, storage)
    if as_json:
        terminal.print_json([tables.trial_record(trial) for trial in study.trials])
    elif as_csv:
        terminal.print_result(tables.to_csv(study.trials).removesuffix("\n"))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        terminal.print_result(_trials_text(study, width))


def export(name: str, *, storage: str | None, output: str) -> None:
    """Copy the saved model of the best trial to ``output``, whole or not at all.

    Raises:
        UsageError: ``output`` cannot be the name of a Keras file, or cannot be written.
        StudyError: There is no such study or no best trial, or its saved model is gone or damaged.
    """
    target = arguments.output_file(
        output, (".keras",), "a model's file ends in .keras; give a name such as best.keras"
    )
    study = open_study(name, storage)
    best = _best(study, storage)
    _copy(_model_file(study, best), target)
    terminal.print_result(
        f"{target}: the model of trial {best.number}, {objective(study.metadata.meta)} "
        f"{formats.metric(best.value)}\n"
        f'Load it with keras.models.load_model("{target}").'
    )


def open_study(name: str, storage: str | None) -> Study:
    """Open an existing study to read it.

    Raises:
        StudyError: There is no study of that name; the message lists the studies in ``runs``.
        StorageError: The storage cannot be opened.
    """
    from paceline.study.study import Study

    study = Study.open(name, storage=storage, directory=DIRECTORY)
    if not study.exists:
        where = f"in {DIRECTORY}" if storage is None else "in that storage"
        there = sorted(path.parent.name for path in DIRECTORY.glob(f"*/{JOURNAL}"))
        hint = f"; {DIRECTORY} has {', '.join(there)}" if there else ""
        raise StudyError(
            f"there is no study {name!r} {where}{hint}. `paceline search` makes one; --storage "
            "names another place to look"
        )
    return study


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
    words = ["paceline", name, study, *more]
    if storage is None:
        return shlex.join(words)
    from paceline.study.storage.rdb import label_of  # Optuna loads here

    if label_of(storage) != storage:
        return f"{shlex.join(words)} --storage URL"
    return shlex.join([*words, "--storage", storage])


def _best(study: Study, storage: str | None) -> Trial:
    best = study.trials.best
    if best is None:
        resume = command("resume", study.name, storage)
        raise StudyError(
            f"study {study.name!r} has no complete trial yet, of {len(study.trials)} in all; go on "
            f"with: {resume}"
        )
    return best


def _trials_text(study: Study, width: int | None) -> str:
    best = study.trials.best
    number = None if best is None else best.number
    text = tables.trials_table(study.trials, best=number, width=width)
    lines = [text.removesuffix("\n"), *_failures(study.trials)]
    if best is not None:
        lines.append(f"* best {objective(study.metadata.meta)}")
    return "\n".join(lines)


def _failures(trials: Sequence[Trial]) -> list[str]:
    return [
        f"trial {trial.number} failed: {trial.error}"
        for trial in trials
        if trial.state == "failed" and trial.error
    ]


def _model_file(study: Study, best: Trial) -> Path:
    from paceline.tuner.checkpoint.best_models import find_saved

    folder = DIRECTORY / study.name
    path = find_saved(folder, best.number, best.value)
    if path is None or path.suffix != ".keras":
        raise StudyError(
            f"the model of trial {best.number} is not in {folder / 'best'}, or it was changed "
            "there; models are written when a search ends and now and then before. Run the command "
            "in the folder where the search ran, or train it again: "
            "build(paceline.HyperParameters(values=...)) with what `paceline best` prints"
        )
    return path


def _copy(source: Path, target: Path) -> None:
    try:
        with written_atomically(target) as part:
            shutil.copyfile(source, part)
    except OSError as error:
        raise UsageError(f"-o {target} cannot be written: {error.strerror or error}") from error
