"""The folder on disk that holds an oracle and its trials."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.errors import ProjectError


class ProjectFolder:
    """The base of ``Oracle`` that reads and writes ``oracle.json`` and ``trial_*/trial.json``.

    A tuner sets the folder after the oracle has been made.

    Attributes:
        directory: The folder that holds project folders; None as long as no tuner has set it.
        project_name: Name of the project's folder in ``directory``.
    """

    def __init__(self) -> None:
        self.directory: Any = None
        self.project_name: Any = None

    def _set_project_dir(self, directory: Any, project_name: Any) -> None:
        self.directory, self.project_name = directory, project_name

    @property
    def _project_dir(self) -> str:
        if self.directory is None:
            raise ProjectError(
                f"this {type(self).__name__} has no folder yet; give it to a Tuner first."
            )
        folder = os.path.join(str(self.directory), str(self.project_name))
        os.makedirs(folder, exist_ok=True)
        return folder

    def _get_oracle_fname(self) -> str:
        return os.path.join(self._project_dir, "oracle.json")

    def _get_trial_dir(self, trial_id: str) -> str:
        folder = os.path.join(self._project_dir, f"trial_{trial_id}")
        os.makedirs(folder, exist_ok=True)
        return folder

    def _save_trial(self, trial: Trial) -> None:
        trial.save(os.path.join(self._get_trial_dir(trial.trial_id), "trial.json"))
        if trial.status == TrialStatus.COMPLETED:
            shutil.rmtree(self._aside, ignore_errors=True)

    @property
    def _aside(self) -> Path:
        """Where a project lies that is overwritten, until the new one has a complete trial."""
        folder = Path(self._project_dir)
        return folder.with_name(f".{folder.name}.before")

    def _put_aside(self) -> None:
        """Keep the project that is there until the new one has a complete trial."""
        if self._aside.exists():  # the project there now was begun anew, and has no such trial
            shutil.rmtree(self._project_dir)
        elif any(Path(self._project_dir).iterdir()):
            Path(self._project_dir).rename(self._aside)

    def _bring_back(self) -> None:
        """Bring back a project that was to be overwritten by one that has no complete trial."""
        if not self._aside.exists():
            return
        try:
            done = any(trial.status == TrialStatus.COMPLETED for trial in self._saved_trials())
        except ProjectError:
            return  # what is there now cannot be read: both stay
        if done:
            shutil.rmtree(self._aside, ignore_errors=True)
        else:
            shutil.rmtree(self._project_dir)
            self._aside.rename(Path(self._project_dir))

    def _saved_trials(self) -> Iterator[Trial]:
        """The trials in the folder, sorted by their ids.

        Raises:
            ProjectError: A file holds no trial.
        """
        for path in sorted(Path(self._project_dir).glob("trial_*/trial.json")):
            try:
                yield Trial.load(path)
            except (KeyError, TypeError) as error:
                raise self._unreadable(path, error) from error

    def _unreadable(self, path: Any, error: Exception) -> ProjectError:
        return ProjectError(
            f"{path} is not what a project of {type(self).__name__} has there "
            f"({type(error).__name__}: {error}). If you did not mean to go on with an existing "
            "project, change `project_name` or pass `overwrite=True`."
        )

    def _remove_project(self) -> None:
        shutil.rmtree(self._project_dir)
