"""What other programs ask of a study: ``paceline stop``, ``pause`` and ``enqueue``, a dashboard.

They write to the study's storage, where the search finds it (``watch.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from paceline.errors import SpaceError, StudyError
from paceline.search_space import Parameter
from paceline.study.metadata import FIXED, META, stored_space
from paceline.study.sharing.watch import REQUEST, Request, meaning
from paceline.study.storage.storage import StudyStorage
from paceline.study.trials.trial_codec import best_so_far


def ask(store: StudyStorage, study: int, request: Request) -> None:
    """Ask the search on a study (the storage's id) to stop, to pause, or to continue."""
    with store.writing():
        record = {"do": request, "id": secrets.token_hex(8)}
        store.storage.set_study_system_attr(study, REQUEST, record)


def asks_to_pause(attrs: Mapping[str, Any]) -> bool:
    """Whether the attributes that programs write for one another pause a study."""
    return meaning(attrs.get(REQUEST)) == "pause"


def enqueue(store: StudyStorage, study: int, name: str, values: Mapping[str, Any]) -> int:
    """Add a trial that waits to be run, and return its number; ``study`` is the storage's id.

    ``values`` are plain name -> real value, and the sampler chooses the others. Raises SpaceError
    for a name that no trial of the study has, or an impossible value.
    """
    with store.errors("read"), store.turn:
        meta = store.storage.get_study_user_attrs(study).get(META) or {}
    by_name: dict[str, list[Parameter]] = {}
    for parameter in stored_space(name, meta).parameters.values():
        by_name.setdefault(parameter.name, []).append(parameter)
    fixed = {}
    for key, value in values.items():
        if key not in by_name:
            known = ", ".join(sorted(by_name)) or "none yet"
            raise SpaceError(
                f"enqueue: study {name!r} has no hyperparameter {key!r}. It has {known}."
            )
        stored = [parameter.to_storage(value) for parameter in by_name[key]]
        # Under several conditions a name has several parameters: build tells which one it is.
        several = len(stored) > 1
        fixed[key if several else by_name[key][0].storage_name] = value if several else stored[0]
    template = create_trial(state=OptunaState.WAITING, system_attrs={FIXED: fixed})
    with store.writing():
        return store.storage.get_trial_number_from_id(
            store.storage.create_new_trial(study, template)
        )


def stop_trial(store: StudyStorage, study: int, name: str, number: int, reason: str) -> None:
    """End a trial that runs or waits as pruned, with a reason; StudyError where none does."""
    ended = f"trial {number} of {name!r} has already finished"
    with store.writing():
        storage = store.storage
        if number >= storage.get_n_trials(study):
            raise StudyError(f"study {name!r} has no trial {number}")
        found = storage.get_trial_id_from_study_id_trial_number(study, number)
        if storage.get_trial(found).state.is_finished():
            raise StudyError(ended)
        try:
            storage.set_trial_user_attr(found, "error", reason)
            directions = storage.get_study_directions(study)
            best = best_so_far(storage.get_trial(found), directions[0] == StudyDirection.MAXIMIZE)
            values = None
            if best is not None and len(directions) == 1:
                storage.set_trial_user_attr(found, "best_epoch", best[0])
                values = [best[1]]
            storage.set_trial_state_values(found, OptunaState.PRUNED, values)
        except RuntimeError:  # a moment ago; Optuna 4 has no class of its own for this
            raise StudyError(ended) from None
