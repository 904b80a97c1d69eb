"""Converts a project folder of KerasTuner into a study of Paceline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.engine.objective import Objective, create_objective
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.errors import ProjectError
from paceline.compat.keras_tuner.utils import load_json
from paceline.errors import ObjectiveError, StudyError
from paceline.study.objectives import Direction
from paceline.study.study import Study

_ORACLE = "oracle.json"


def from_keras_tuner(
    project: str | Path,
    study: str | None = None,
    *,
    objective: Any = None,
    storage: Any = None,
    directory: str | Path = "runs",
) -> str:
    """Makes a study from the trials of a KerasTuner project; the project is not changed.

    The value of a trial is its score. Its history has the metrics of the best epoch, because
    KerasTuner keeps no others. ``paceline.Tuner(build, study=...)`` continues the study, and its
    sampler learns from these trials.

    Args:
        project: Folder of the project: ``directory/project_name`` of the tuner.
        study: Name of the new study; None: the name of the folder.
        objective: The objective of the project, as you passed it to KerasTuner; None: the metric
            whose best values are the scores.
        storage: Storage of the study, as ``Tuner`` takes it.
        directory: Folder of studies, as ``Tuner`` takes it.

    Returns:
        The name of the study.

    Raises:
        ProjectError: The folder holds no project, or one that cannot be read.
        ObjectiveError: Paceline cannot tell the objective, or the project has no such metric.
        StudyError: A study of that name exists.
    """
    folder = Path(project)
    trials = read_project(folder)
    wanted = _objective_of(folder, trials, objective)
    direction: Direction = "maximize" if wanted.direction == "max" else "minimize"
    name = folder.resolve().name if study is None else study
    made = Study(name, storage=storage, directory=Path(directory), direction=direction)
    if made.exists:
        raise StudyError(f"study must be a new name, got {name!r}, which exists. Pass another one.")
    imported = {"from": "keras_tuner", "project": str(folder.resolve())}
    meta = {"objective": wanted.name, "direction": direction, "search": {}, "imported": imported}
    made.persist(meta)
    try:
        for trial in trials:
            _take_over(made, trial, wanted)
    finally:
        made.close()
    return name


def read_project(folder: Path) -> list[Trial]:
    """Returns the trials of a project in the order in which they began, else ProjectError."""
    if not (folder / _ORACLE).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{_ORACLE}"))
        why = f"has no {_ORACLE}" if folder.is_dir() else "does not exist"
        found = f" The projects in it are {', '.join(inside)}." if inside else ""
        raise ProjectError(
            f"project must be the folder of a KerasTuner project, got {folder}, which {why}.{found}"
            f" Pass `directory/project_name` of the tuner, a folder with {_ORACLE} and trial_*."
        )
    state = load_json(folder / _ORACLE)
    trials: dict[str, Trial] = {}
    for path in sorted(folder.glob("trial_*/trial.json")):
        try:
            trial = Trial.load(path)
        except (KeyError, TypeError, AttributeError) as error:
            raise ProjectError(
                f"{path} is not a trial of KerasTuner ({type(error).__name__}: {error}). Repair or "
                "remove it."
            ) from error
        trials[trial.trial_id] = trial
    order = state.get("start_order") if isinstance(state, dict) else None
    if not isinstance(order, list):
        raise ProjectError(f"{folder / _ORACLE} must be the state of an oracle with start_order.")
    begun = [trials.pop(trial_id) for trial_id in order if trial_id in trials]
    return [*begun, *trials.values()]


def _objective_of(folder: Path, trials: Sequence[Trial], given: Any) -> Objective:
    """The objective whose best values are the scores of the trials."""
    complete = [trial for trial in trials if trial.status == TrialStatus.COMPLETED]
    names = list(dict.fromkeys(name for trial in complete for name in trial.metrics.metrics))
    if given is not None:
        objective = create_objective(given)
        if names and objective.name not in names:
            raise ObjectiveError(
                f"objective must be a metric of {folder}, one of {', '.join(names)}, got "
                f'"{objective.name}".'
            )
        return objective
    fitting = [
        name
        for name in names
        if all(
            trial.metrics.exists(name) and trial.metrics.get_best_value(name) == trial.score
            for trial in complete
        )
    ]
    # If training and validation have the same best values, the objective is the validation metric,
    # because nobody searches for a training metric.
    fitting = [name for name in fitting if name.startswith("val_")] or fitting
    if len(fitting) != 1:
        what = f"{' and '.join(fitting)} fit" if fitting else "no metric fits"
        raise ObjectiveError(
            f"objective is missing, and {what} the scores of the {len(complete)} complete trials "
            f'in {folder}. Pass it, such as objective="val_accuracy".'
        )
    return Objective(fitting[0], complete[0].metrics.get_direction(fitting[0]))


def _take_over(study: Study, trial: Trial, objective: Objective) -> None:
    """Adds a finished trial to the study."""
    if trial.status not in (TrialStatus.COMPLETED, TrialStatus.FAILED):
        return
    number = study.accept(study.proposer.ask(0), trial.hyperparameters)
    if trial.status == TrialStatus.FAILED or not trial.metrics.exists(objective.name):
        lines = (trial.message or "failed").strip().splitlines()
        study.updates.finish(
            number, "failed", attrs={"error": lines[-1], "trial_id": trial.trial_id}
        )
        return
    step = trial.best_step or 0
    logs = {name: float(each.get_last_value()) for name, each in trial.metrics.metrics.items()}
    value = float(trial.metrics.get_best_value(objective.name))
    study.updates.report(number, step + 1, logs, value)
    study.updates.finish(number, "complete", attrs={"trial_id": trial.trial_id})
