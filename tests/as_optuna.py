"""What is stored of a study, as Optuna alone reads it."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend


def optuna_study(name: str = "s", runs: Path | str = "runs") -> optuna.Study:
    """A study of the default storage, as another program loads it."""
    backend = JournalFileBackend(str(Path(runs, name, "journal.log")))
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))


def amounts(trial: optuna.trial.FrozenTrial) -> list[float]:
    """The constraints of a trial."""
    if hasattr(trial, "constraints"):
        return list(trial.constraints.values())
    return list(trial.system_attrs["constraints"])
