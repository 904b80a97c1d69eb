"""The files that callbacks of trials write, with a copy of the best trial's at the user's path."""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.pack.callbacks.per_trial import give_own_path

#: A field of a path that Keras fills in, such as ``{epoch:02d}``.
_FIELD = re.compile(r"(\{[^{}]*\})")


class CallbackFiles:
    """Gives each trial a sub-folder next to the user's path, or in the user's folder.

    ``ModelCheckpoint("out/best.keras")`` of trial 07 writes ``out/trials/07/best.keras``, and
    ``TensorBoard("logs")`` writes ``logs/07/execution0``, as in KerasTuner on TensorFlow. At the
    end of a search the best trial's file is copied to ``out/best.keras``.
    """

    def __init__(self, executions: int) -> None:
        self._executions = executions  # trainings of each configuration
        self._paths: dict[Path, None] = {}  # the user's paths, perhaps with fields such as {epoch}
        self._trained: set[str] = set()  # trials of this search
        self._best: dict[str, int] = {}

    def file_of(self, path: Path, trial_id: str, execution: int) -> Path:
        """Returns the path of one training's file for a file of the user."""
        self._paths[path] = None
        self._trained.add(trial_id)
        return path.parent.joinpath(*self._between(trial_id, execution), path.name)

    def _between(self, trial_id: str, execution: int) -> list[str]:
        """The folders between that of the user's file and that of one training's file."""
        return ["trials", trial_id, *([f"execution{execution}"] if self._executions > 1 else [])]

    def note_best(self, trial_id: str, execution: int) -> None:
        """Sets which execution of a trial has the best objective; by default the first one."""
        self._best[trial_id] = execution

    def put_at_user_paths(self, best: str) -> None:
        """Copies the files of the trial with the id ``best`` to the user's paths.

        If an earlier search trained it more than once, nothing is copied, because only that search
        knew the best execution.
        """
        if self._executions > 1 and best not in self._trained:
            return
        between = self._between(best, self._best.get(best, 0))
        for path in self._paths:
            own = path.parent.joinpath(*between, path.name)
            at, n = len(path.parent.parts), len(between)
            texts = _FIELD.split(str(own))
            pattern = "".join("*" if _FIELD.fullmatch(t) else glob.escape(t) for t in texts)
            for found in map(Path, glob.glob(pattern)):
                target = Path(*found.parts[:at], *found.parts[at + n :])
                if found.is_dir():
                    shutil.copytree(found, target, dirs_exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(found, target)

    def give_to(self, callbacks: list[Any], trial_id: str, execution: int) -> None:
        """Gives the callbacks of one training paths of its own."""
        paths = ExecutionPaths(self, lambda name: (trial_id, execution))
        for callback in callbacks:
            give_own_path(callback, trial_id, paths)


@dataclass(frozen=True)
class ExecutionPaths:
    """The paths of trainings; a ``TrialPaths``."""

    files: CallbackFiles
    # The search's name for a training -> the id of its trial, and the execution's number, from 0.
    execution_of: Callable[[str], tuple[str, int]]

    def first_length(self, trial: str, at: int) -> Path | None:
        """Returns None, because a project does not store it."""
        return None

    def label(self, trial: str) -> str:
        """Returns the text for ``{trial}`` in paths."""
        return self.execution_of(trial)[0]

    def of(self, path: Path, trial: str, is_file: bool) -> Path:
        """Returns the path of a training for a path of the user."""
        trial_id, execution = self.execution_of(trial)
        if is_file:
            return self.files.file_of(path, trial_id, execution)
        return path / trial_id / f"execution{execution}"
