"""``paceline best``: needs neither JAX nor Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.cli import output as terminal
from paceline.cli import studies
from paceline.cli.options import Json, Storage, StudyName
from paceline.errors import StudyError
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.study.trial import Trial
    from paceline.study.view import StudyView


@terminal.exit_codes()
def best(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Print a study's best configuration, or the front of several objectives."""
    from paceline.report import summary
    from paceline.study.trials import best_record, front_record

    view = studies.open_study(study, storage)
    found = best_trial(view, storage)
    if view.several:
        front = [front_record(trial, view.objectives) for trial in view.trials.front]
        if as_json:
            terminal.print_json(front)
        else:
            terminal.print_result(summary.front_text(front, view.objectives))
        return
    record = best_record(found, view.trials.ties)
    if as_json:
        terminal.print_json(record)
        return
    terminal.print_result(summary.best_text(record, studies.objective(view.meta)))


def best_trial(study: StudyView, storage: str | None) -> Trial:
    """Return the best trial, or one of the front; the storage is for the error's advice."""
    best = study.best
    if best is None:
        resume = studies.command("resume", study.name, storage)
        some = any(trial.value is not None and trial.violates for trial in study.trials)
        lacks = "a value that violates no constraint" if some else "been validated for an epoch yet"
        n = formats.count(len(study.trials), "trial")
        raise StudyError(f"study {study.name!r}: none of {n} has {lacks}; go on with: {resume}")
    return best
