"""What a study's folder and storage must not hold: they may come from a stranger.

Nothing that is read of a study can run code: no pickle, no ``eval``, and of saved models the
weights alone. What is refused here could reach further than the study: links out of its folder,
through which a search would write, and pickles in a storage, which Optuna's samplers would load.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StorageError, StudyError

#: Optuna's CMA-ES keeps its optimizer, pickled, in attributes that begin so.
_PICKLED = ("cma:", "sepcma:", "cmawm:")


def check_folder(folder: Path) -> None:
    """Refuses a study's folder in which a link leads out of it; there may be none.

    Raises:
        StudyError: The message names the link.
    """
    inside = folder.resolve()
    for where, folders, files in os.walk(folder):
        for path in (Path(where, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise StudyError(
                    f"study {folder.name!r}: {path} is a link out of the study's folder, and what "
                    "the study writes would go there; replace it by what it leads to, or make the "
                    "whole folder a link."
                )


def check_storage_text(storage: Any) -> None:
    """Refuses control characters in the name of a storage.

    Raises:
        StorageError: There are some.
    """
    if isinstance(storage, str) and not storage.isprintable():
        raise StorageError(
            f"storage is {ascii(storage)[:200]}, with control characters in it; give journal:PATH "
            "or an Optuna URL without them."
        )


def check_attributes(study: str, trials: Iterable[FrozenTrial]) -> None:
    """Refuses pickles among what a storage holds of trials.

    Raises:
        StorageError: There are some.
    """
    for trial in trials:
        if any(key.startswith(_PICKLED) for key in trial.system_attrs):
            raise StorageError(
                f"study {study!r}: its storage holds pickles of Optuna's CMA-ES sampler (trial "
                f"{trial.number}), and whoever reads a pickle runs what its writer liked. Paceline "
                "does not open it; copy its trials to another study with "
                "optuna.trial.create_trial, without their system_attrs."
            )


def raise_renamed(study: str, directory: Path, others: Sequence[str]) -> None:
    """Refuses a folder whose own journal holds other studies: it has another name than it had.

    Raises:
        StudyError: The message names the folder's name before.
    """
    raise StudyError(
        f"study {study!r}: the journal in {directory / study} holds no study of that name, but "
        f"{others[0]!r}: was the folder renamed? Call it {others[0]!r} again, and the study too: "
        "its checkpoint and its models are in there."
    )
