"""A study as a storage keeps it: an ordinary Optuna study with one attribute of Paceline's.

``StoredStudy`` is a study's content in a storage, ``StudyMetadata`` its attribute ``paceline``.
``RestoredStudy`` has the trials that a search begins with: as in the storage, or as in a
checkpoint.
"""

from __future__ import annotations

import copy
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import StudyError
from paceline.search_space import Space
from paceline.study.objectives import Direction
from paceline.study.storage.schema import UNREADABLE, StudyMeta, why
from paceline.study.trials import trial_codec
from paceline.study.trials.trial import INTERRUPTED, Trial, TrialState

# The attribute of an Optuna study that holds what only Paceline knows of it.
META = "paceline"
# Version of what it holds.
FORMAT = 3
#: Optuna's ``enqueue_trial`` keeps the values of a waiting trial under this name since 2.0. There
#: is no public name for it, and ``Study.ask`` would choose all other values.
FIXED = "fixed_params"
# Bytes of a study's name: folders are called so, some with a trial's number, in at most 255 bytes.
_NAME_BYTES = 240


@dataclass
class StoredStudy:
    """What a storage holds of a study."""

    directions: tuple[Direction, ...]  # one for each objective
    # The study's attribute ``paceline``; empty for a study made by other means.
    meta: dict[str, Any] = field(default_factory=dict)
    trials: list[FrozenTrial] = field(default_factory=list)  # all, by number
    # The attributes that programs write for one another: heartbeats, requests.
    attrs: dict[str, Any] = field(default_factory=dict)


def check_name(name: Any) -> None:
    """Refuse a study name that is not a plain name of a folder: StudyError."""
    if not isinstance(name, str) or not name.strip():
        raise StudyError(f"study name must not be empty, got {name!r}. Pass one, such as fashion.")
    if "/" in name or "\\" in name or ".." in name or name.startswith("."):
        raise StudyError(
            f"study name must not be a path or begin with a dot, got {name!r}. Pass a plain name, "
            "and storage=journal:PATH for the place."
        )
    if not name.isprintable() or name != name.strip() or len(name) > 128:
        raise StudyError(
            "study name must have at most 128 printable characters and no spaces around it, got "
            f"{name[:140]!r}."
        )
    if (n_bytes := len(os.fsencode(name))) > _NAME_BYTES:
        raise StudyError(
            f"study name must have at most {_NAME_BYTES} bytes as a folder name, got {name!r} "
            f"with {n_bytes}. Pass a shorter name."
        )


def check_meta(meta: Any) -> None:
    """Refuse an attribute ``paceline`` that is not of the schema; one of another version passes."""
    found = meta.get("format", FORMAT) if isinstance(meta, dict) else None
    if isinstance(found, int) and found != FORMAT:
        return  # ``stored_space`` says so
    try:
        msgspec.convert(meta, StudyMeta)
    except UNREADABLE as error:
        raise ValueError(why(error, meta, "the attribute paceline")) from None
    try:
        _space_of(meta)
    except _NO_SPACE as error:
        said = f"the stored space cannot be read ({type(error).__name__}: {error})"
        raise ValueError(said) from None


def stored_space(name: str, meta: Mapping[str, Any]) -> Space:
    """Return the space that a study's meta holds; StudyError where it cannot be read."""
    found = meta.get("format", FORMAT)
    if found != FORMAT:
        older = isinstance(found, int) and found < FORMAT
        by = "an older" if older else "a newer"
        hint = "Choose another study name" if older else "pip install --upgrade paceline"
        raise StudyError(
            f'study "{name}" was written in format {found!r} by {by} Paceline; this version reads '
            f"format {FORMAT}. {hint}."
        )
    try:
        return _space_of(meta)
    except _NO_SPACE as error:
        raise StudyError(
            f'study "{name}": the stored space cannot be read ({type(error).__name__}: {error}). '
            "Choose another study name."
        ) from error


#: What reading a space raises where some value in it is wrong.
_NO_SPACE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    Warning,
)


def _space_of(meta: Mapping[str, Any]) -> Space:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna would change bounds that do not fit their step
        return Space.from_json(meta.get("space", []))


class StudyMetadata:
    """The attribute ``paceline`` of a study, which grows with the study's space.

    ``stored`` is None for a new study; ``session`` tells this search from all others.
    """

    def __init__(self, study: str, stored: StoredStudy | None, session: str) -> None:
        self.name = study
        self.meta: dict[str, Any] = stored.meta if stored is not None else {}
        # Tells the study from all others of its name; empty where another program made it.
        self.id = secrets.token_hex(8) if stored is None else str(self.meta.get("id", ""))
        self.session = session
        # What was learnt of earlier studies, as JSON values; see ``samplers/earlier_studies.py``.
        self.learnt: list[dict[str, Any]] = list(self.meta.get("learnt", ()))
        self.space: Space = stored_space(study, self.meta)
        self._n_parameters = len(self.space.parameters)

    def write(self, meta: Mapping[str, Any]) -> None:
        """Replace what is in the attribute; StudyError where no reader would take it."""
        space = self.space.to_json()
        self._n_parameters = len(space)
        more = {"format": FORMAT, "space": space, "session": self.session}
        some = {"learnt": self.learnt, "id": self.id}
        more |= {name: value for name, value in some.items() if value}
        described = trial_codec.plain({**meta, **more})
        try:
            check_meta(described)
        except ValueError as error:  # of an argument that ``Tuner.search`` has not refused
            name = self.name
            raise StudyError(f"study {name!r} cannot be written: {error}. Change it.") from None
        self.meta = described

    @property
    def outgrown(self) -> bool:
        """Whether the space has parameters that ``meta`` does not hold."""
        return len(self.space.parameters) > self._n_parameters

    def end_session(self) -> None:
        """Rename the session, since others search the study: no checkpoint may go back to it."""
        self.session = f"shared-{self.session.removeprefix('shared-')}"


class RestoredStudy:
    """The trials that a search begins with.

    ``stored`` is None for a new study, ``resumed`` of ``Study.state``, or None.
    """

    def __init__(self, stored: StoredStudy | None, resumed: Mapping[str, Any] | None) -> None:
        # By number: ``stored`` as the storage holds them, ``trials`` so or as the snapshot does.
        self.stored: list[FrozenTrial] = stored.trials if stored is not None else []
        self.trials = self.stored
        # The snapshot, where the storage allows to continue from it.
        self.resumed: Mapping[str, Any] | None = None
        # The hparams and the seed of trials in the storage that will be repeated, by number.
        self.foretold: dict[int, tuple[dict[str, Any], int | None]] = {}
        self.of_others: set[int] = set()  # trials that other programs have added since
        # Trials that are to be repeated, and have ended in the storage: their stored ends stand.
        self._ended: dict[int, FrozenTrial] = {}
        session = "" if stored is None else stored.meta.get("session", "")
        if stored is None or resumed is None or resumed.get("session") != session:
            return
        back = rolled_back(stored.trials, resumed)
        if back is None:
            return
        self.resumed = resumed
        self._ended = {
            trial.number: trial
            for trial in stored.trials
            if trial.state.is_finished()
            and trial_codec.is_ours(trial.user_attrs)
            and (trial.number >= resumed["next"] or str(trial.number) in resumed["open"])
        }
        self.trials, self.foretold = back
        later = stored.trials[resumed["next"] :]
        by_others = [trial for trial in later if trial.number not in self.foretold]
        self.of_others = {trial.number for trial in by_others}
        self.trials = [*self.trials, *by_others]

    @property
    def begun(self) -> bool:
        """Whether Paceline has begun a trial of the study."""
        return any(trial_codec.is_ours(trial.user_attrs) for trial in self.stored)

    def asked_for(self) -> list[dict[str, Any]]:
        """The hparams of the trials that the user had asked for; some of them are repeated."""
        asked = [t.user_attrs for t in self.stored if t.user_attrs.get("enqueued") is True]
        return [attrs["hparams"] for attrs in asked if isinstance(attrs.get("hparams"), dict)]

    def ended_before(self, number: int) -> bool:
        """Whether a trial that is repeated has ended in the storage."""
        return number in self._ended

    def costs_before(self, number: int) -> dict[str, Any]:
        """Return what was measured of a trial that is repeated and had ended; empty otherwise."""
        trial = trial_codec.from_frozen(self._ended[number]) if number in self._ended else None
        return {} if trial is None else trial.costs

    def end_of(
        self, number: int, state: TrialState, values: Sequence[float] | None
    ) -> Trial | None:
        """Return the trial as it ended before, where it ends otherwise now; else None."""
        stored = self._ended.pop(number, None)
        if stored is None:
            return None
        if (stored.state, stored.values) == (trial_codec.OPTUNA_STATES[state], values):
            return None
        # Something is not as it was: another device, or a build that was mended.
        return trial_codec.from_frozen(stored)

    def not_come_again(self) -> Iterator[Trial]:
        """Trials that were to be repeated and have not, as they ended before."""
        for stored in self._ended.values():
            trial = trial_codec.from_frozen(stored)
            if trial is not None:
                yield trial


def rolled_back(
    trials: Sequence[FrozenTrial], facts: Mapping[str, Any]
) -> tuple[list[FrozenTrial], dict[int, tuple[dict[str, Any], int | None]]] | None:
    """Return the trials of a study as they were when a snapshot, of ``Study.state``, was taken.

    The unfinished ones run again, and those that other programs added stay as they are. With them
    come the hparams and seeds of the search's later trials, by number. None if the storage does not
    hold the snapshot's trials.
    """
    n, opened = facts["next"], facts["open"]
    if len(trials) < n:
        return None
    past = []
    for stored in trials[:n]:
        trial, was = stored, opened.get(str(stored.number))
        ours = trial_codec.is_ours(stored.user_attrs)
        if was is None and not stored.state.is_finished() and ours and not waited(stored):
            return None
        if was is not None:
            trial = copy.copy(stored)
            trial.state, trial.values, trial.datetime_complete = OptunaState.RUNNING, None, None
            values = trial.intermediate_values.items()
            trial.intermediate_values = {e: v for e, v in values if e <= was["epochs"]}
            kept = ("hparams", "seed", "draw", "enqueued")
            attrs = {key: trial.user_attrs.get(key) for key in kept}
            attrs["program_id"] = was["program_id"]
            if stored.user_attrs.get("error") == INTERRUPTED:
                return None  # it has been tried again since
            if not isinstance(attrs["hparams"], dict) or attrs["hparams"] != was["hparams"]:
                return None
            trial.user_attrs = {key: value for key, value in attrs.items() if value is not None}
        past.append(trial)
    later = [trial for trial in trials[n:] if trial_codec.is_ours(trial.user_attrs)]
    told = {t.number: (t.user_attrs["hparams"], t.user_attrs.get("seed")) for t in later}
    if not all(isinstance(hparams, dict) for hparams, _ in told.values()):
        return None
    return past, told


def waited(stored: FrozenTrial) -> bool:
    """Whether another program has added a trial that was to be run here."""
    return FIXED in stored.system_attrs
