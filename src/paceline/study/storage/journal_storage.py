"""The studies in a journal file: the file is read once, and each line changes what is known.

Optuna's own storage copies a trial at every record of it. Here a record changes the trial in place
(``JournalReplay``), until a caller has the trial. Each line is compared with the schema before it
is used, and a damaged line is named by its number. ``JournalStorage`` writes what Optuna's does, so
that both read each other's files.
"""

# ruff: noqa: D102 - what the methods of a storage do, Optuna's BaseStorage says

from __future__ import annotations

import copy
import math
import threading
import uuid
import warnings
from collections.abc import Container, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from paceline.study.metadata import META, check_meta
from paceline.study.storage import compacted, schema
from paceline.study.storage.journal import DamagedLineError, JournalFile, damaged, record_of
from paceline.study.storage.schema import shown
from paceline.study.trials.trial_codec import check_attributes, check_values, is_ours

# What values raise that no record of Optuna's has: dates, distributions, choices.
_IMPOSSIBLE = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
_OPEN = (TrialState.RUNNING, TrialState.WAITING)
_STATES = {state.value: state for state in TrialState}
_DIRECTIONS = {direction.value: direction for direction in StudyDirection}


class TrialTakenError(RuntimeError):
    """A trial that waited runs in another process."""


class StudyRecord:
    """A study as the lines of a journal tell it."""

    def __init__(self, name: str, directions: list[StudyDirection]) -> None:
        self.study_name, self.directions = name, directions  # Optuna names them so
        self.user_attrs: dict[str, Any] = {}
        self.system_attrs: dict[str, Any] = {}  # what programs write for one another
        self.trials: list[int] = []  # ids; the place is the trial's number
        self.is_ours = False  # whether Paceline has described it


class JournalReplay:
    """The studies and trials that the lines of a journal make, one line after another.

    Studies and trials have no ids in the file: the place of the line that creates them is the id.
    Records of deleted studies and finished trials change nothing: two processes wrote at the same
    time, and the first record stands.
    """

    def __init__(self) -> None:
        self.studies: dict[int, StudyRecord] = {}  # by id
        self.trials: list[FrozenTrial] = []  # by id, as Optuna has them
        self.n_lines = self.n_studies = 0  # applied; created, also those that were deleted
        self._study_of: list[StudyRecord] = []  # by the trial's id
        # Ids of trials that no reader has: they may be changed in place.
        self._unshared: set[int] = set()
        self._distributions: dict[str, BaseDistribution] = {}

    def apply(self, line: Any) -> tuple[str, Exception | None]:
        """Apply a line, or a record that was read from one; DamagedLineError where it cannot be.

        Returns which process wrote it, and why it changes nothing (None if it changes something).
        """
        try:
            record = record_of(line) if type(line) is bytes else line
            why = self._APPLY[type(record)](self, record)
        except DamagedLineError as error:
            raise DamagedLineError(error.reason, self.n_lines + 1) from None
        except (*_IMPOSSIBLE, RecursionError) as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise DamagedLineError(reason, self.n_lines + 1) from None
        self.n_lines += 1
        return record.worker_id, why

    def share(self, trial_id: int) -> FrozenTrial:
        """Return a trial for others to keep: from now on it is copied before it changes."""
        self._unshared.discard(trial_id)
        return self.trials[trial_id]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield records that make the same studies and trials, one for each trial.

        LookupError where a study was deleted: the ids of others are known by its lines.
        """
        by = {"worker_id": ""}
        for study_id in range(self.n_studies):
            study, of = self.studies[study_id], {**by, "study_id": study_id}
            directions = [int(direction) for direction in study.directions]
            yield {"op_code": 0, **by, "study_name": study.study_name, "directions": directions}
            for key, value in study.user_attrs.items():
                yield {"op_code": 2, **of, "user_attr": {key: value}}
            for key, value in study.system_attrs.items():
                yield {"op_code": 3, **of, "system_attr": {key: value}}
        ids = {id(study): study_id for study_id, study in self.studies.items()}
        for trial, study in zip(self.trials, self._study_of, strict=True):
            yield {"op_code": 4, **by, "study_id": ids[id(study)], **_journal_fields(trial)}

    def _create_study(self, record: schema.CreateStudy) -> Exception | None:
        if any(study.study_name == record.study_name for study in self.studies.values()):
            return DuplicatedStudyError(f"study {record.study_name!r} exists")
        directions = [_DIRECTIONS[direction] for direction in record.directions]
        self.studies[self.n_studies] = StudyRecord(record.study_name, directions)
        self.n_studies += 1
        return None

    def _delete_study(self, record: schema.DeleteStudy) -> Exception | None:
        known = self.studies.pop(record.study_id, None)
        return self._no_study(record.study_id) if known is None else None

    def _set_study_user_attr(self, record: schema.SetStudyUserAttr) -> Exception | None:
        study = self.studies.get(record.study_id)
        if study is None:
            return self._no_study(record.study_id)
        if META in record.user_attr:
            check_meta(record.user_attr[META])
            study.is_ours = True
        study.user_attrs = {**study.user_attrs, **record.user_attr}
        return None

    def _set_study_system_attr(self, record: schema.SetStudySystemAttr) -> Exception | None:
        study = self.studies.get(record.study_id)
        if study is None:
            return self._no_study(record.study_id)
        study.system_attrs = {**study.system_attrs, **record.system_attr}
        return None

    def _create_trial(self, record: schema.CreateTrial) -> Exception | None:
        study = self.studies.get(record.study_id)
        if study is None:
            return self._no_study(record.study_id)
        kinds = {name: self._distribution(text) for name, text in record.distributions.items()}
        trial = FrozenTrial(
            number=len(study.trials),
            state=_STATES[record.state],
            value=record.value,
            values=record.values,
            datetime_start=_local_time(record.datetime_start),
            datetime_complete=_local_time(record.datetime_complete),
            params={
                key: _external_value(kinds[key], value) for key, value in record.params.items()
            },
            distributions=kinds,
            user_attrs=record.user_attrs,
            system_attrs=record.system_attrs,
            intermediate_values=record.intermediate_values,
            trial_id=len(self.trials),
        )
        check_values(trial.state, trial.values, len(study.directions))
        if study.is_ours and is_ours(record.user_attrs):
            check_attributes(record.user_attrs)
        self._unshared.add(len(self.trials))
        study.trials.append(len(self.trials))
        self._study_of.append(study)
        self.trials.append(trial)
        return None

    def _set_trial_param(self, record: schema.SetTrialParam) -> Exception | None:
        kind = self._distribution(record.distribution)
        value = _external_value(kind, record.param_value_internal)
        trial, why = self._to_change(record.trial_id)
        if trial is None:
            return why
        known = next(
            (
                there.distributions[record.param_name]
                for there in map(self.trials.__getitem__, self._study_of[record.trial_id].trials)
                if record.param_name in there.distributions
            ),
            kind,
        )
        try:
            check_distribution_compatibility(known, kind)
        except ValueError as error:
            return error
        trial.params = {**trial.params, record.param_name: value}
        trial.distributions = {**trial.distributions, record.param_name: kind}
        return None

    def _set_trial_state(self, record: schema.SetTrialState) -> Exception | None:
        state = _STATES[record.state]
        started = _local_time(record.datetime_start)
        completed = _local_time(record.datetime_complete)
        trial, why = self._to_change(record.trial_id)
        if trial is None:
            return why
        if state == trial.state == TrialState.RUNNING:
            return TrialTakenError("another process already runs the trial")
        values = trial.values if record.values is None else record.values
        check_values(state, values, len(self._study_of[record.trial_id].directions))
        trial.state, trial.values = state, values
        if state == TrialState.RUNNING:
            trial.datetime_start = started
        elif state.is_finished():
            trial.datetime_complete = completed
        return None

    def _set_intermediate(self, record: schema.SetTrialIntermediateValue) -> Exception | None:
        trial, why = self._to_change(record.trial_id)
        if trial is not None:
            trial.intermediate_values[record.step] = record.intermediate_value
        return why

    def _set_trial_user_attr(self, record: schema.SetTrialUserAttr) -> Exception | None:
        trial, why = self._to_change(record.trial_id)
        if trial is not None:
            if self._study_of[record.trial_id].is_ours and is_ours(trial.user_attrs):
                check_attributes(record.user_attr)
            trial.user_attrs.update(record.user_attr)
        return why

    def _set_trial_system_attr(self, record: schema.SetTrialSystemAttr) -> Exception | None:
        trial, why = self._to_change(record.trial_id)
        if trial is not None:
            trial.system_attrs.update(record.system_attr)
        return why

    def _no_study(self, study_id: int) -> Exception:
        if study_id >= self.n_studies:
            raise ValueError(f"it is of study {study_id}, which no line before it begins")
        return KeyError(f"study {study_id} was deleted")

    def _to_change(self, trial_id: int) -> tuple[FrozenTrial | None, Exception | None]:
        """Return a trial that may be changed in place; or None, and why there is none."""
        if trial_id >= len(self.trials):
            raise ValueError(f"it is of trial {trial_id}, which no line before it begins")
        trial = self.trials[trial_id]
        if trial.state not in _OPEN:
            return None, RuntimeError(f"trial {trial.number} has finished and cannot be changed")
        if trial_id not in self._unshared:
            trial = self.trials[trial_id] = copy.copy(trial)
            trial.user_attrs = dict(trial.user_attrs)
            trial.system_attrs = dict(trial.system_attrs)
            trial.intermediate_values = dict(trial.intermediate_values)
            self._unshared.add(trial_id)
        return trial, None

    def _distribution(self, text: str) -> BaseDistribution:
        """Return a distribution of its JSON; trials with the same text share the object."""
        found = self._distributions.get(text)
        if found is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of kinds that other programs chose
                found = self._distributions[text] = json_to_distribution(text)
        return found

    _APPLY: ClassVar[dict[type, Any]] = {
        schema.CreateStudy: _create_study,
        schema.DeleteStudy: _delete_study,
        schema.SetStudyUserAttr: _set_study_user_attr,
        schema.SetStudySystemAttr: _set_study_system_attr,
        schema.CreateTrial: _create_trial,
        schema.SetTrialParam: _set_trial_param,
        schema.SetTrialState: _set_trial_state,
        schema.SetTrialIntermediateValue: _set_intermediate,
        schema.SetTrialUserAttr: _set_trial_user_attr,
        schema.SetTrialSystemAttr: _set_trial_system_attr,
        schema.DiscardTrials: lambda replay, record: None,
    }


class JournalStorage(BaseStorage):
    """Optuna's interface of a storage, over a journal file.

    A batch of the file that fails leaves this object wrong: make another one.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._replay = JournalReplay()
        self._n_compacted = 0  # bytes of the file that the compacted one covers
        if file.compacted.is_file():
            self._read_compacted()
        # Each thread is a writer of its own, as in Optuna's storage.
        self._process = str(uuid.uuid4())
        self._made: dict[int, int] = {}  # thread -> id of the trial that it made last
        self.n_foreign = self._replay.n_lines  # lines by other objects, of those read
        self._sync()

    def compact(self) -> None:
        """Write what the lines so far come to beside a long journal: the next reader is quicker."""
        with self._file.turn:
            self._sync()
            n_bytes = self._file.position[1]
            if n_bytes - self._n_compacted >= compacted.WORTHWHILE:
                compacted.write(self._file, self._replay.records())
                self._n_compacted = n_bytes

    def _read_compacted(self) -> None:
        replay = JournalReplay()
        try:
            with compacted.reading(self._file) as (header, records):
                for record in records:
                    replay.apply(record)
        except (OSError, ValueError):  # the journal itself says what is so
            return
        self._replay, replay.n_lines, self._n_compacted = replay, header.n_lines, header.n_bytes
        self._file.skip(header.n_lines, header.n_bytes)

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        name = study_name or f"no-name-{uuid.uuid4()}"
        self._write(0, study_name=name, directions=[int(direction) for direction in directions])
        return self.get_study_id_from_name(name)

    def delete_study(self, study_id: int) -> None:
        self._write(1, study_id=study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._write(2, study_id=study_id, user_attr={key: value})

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._write(3, study_id=study_id, system_attr={key: value})

    def get_study_id_from_name(self, study_name: str) -> int:
        for found, study in self._studies().items():
            if study.study_name == study_name:
                return found
        raise KeyError(f"there is no study {study_name!r}")

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._studies()[study_id].study_name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._studies()[study_id].directions

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._studies()[study_id].user_attrs

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._studies()[study_id].system_attrs

    def get_all_studies(self) -> list[Any]:
        return list(self._studies().values())

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        started = _utc_text(datetime.now(tz=UTC))
        fields: dict[str, Any] = {"study_id": study_id, "datetime_start": started}
        if template_trial is not None:
            fields |= _journal_fields(template_trial)
        with self._file.turn:
            self._write(4, **fields)
            return self._made[threading.get_ident()]

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        self._write(
            5,
            trial_id=trial_id,
            param_name=param_name,
            param_value_internal=param_value_internal,
            distribution=distribution_to_json(distribution),
        )

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        fields: dict[str, Any] = {"trial_id": trial_id, "state": int(state), "values": values}
        if state == TrialState.RUNNING:
            fields["datetime_start"] = _utc_text(datetime.now(tz=UTC))
        elif state.is_finished():
            fields["datetime_complete"] = _utc_text(datetime.now(tz=UTC))
        with self._file.turn:
            try:
                self._write(6, **fields)
            except TrialTakenError:
                return False
        return True

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        self._write(7, trial_id=trial_id, step=step, intermediate_value=intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._write(8, trial_id=trial_id, user_attr={key: value})

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._write(9, trial_id=trial_id, system_attr={key: value})

    def get_trial(self, trial_id: int) -> FrozenTrial:
        with self._file.turn:
            self._sync()
            if trial_id >= len(self._replay.trials):
                raise KeyError(f"there is no trial of id {trial_id}")
            return self._replay.share(trial_id)

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        trials = self._studies()[study_id].trials
        if trial_number >= len(trials):
            raise KeyError(f"there is no trial {trial_number}")
        return trials[trial_number]

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        with self._file.turn:
            there = map(self._replay.share, self._studies()[study_id].trials)
            found = [trial for trial in there if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def _studies(self) -> dict[int, StudyRecord]:
        self._sync()
        return self._replay.studies

    @property
    def _writer(self) -> str:
        return f"{self._process}-{threading.get_ident()}"

    def _write(self, operation: int, **fields: Any) -> None:
        """Append a record, and apply it; one that changes nothing is not written, but an error."""
        with self._file.batch():
            self._sync()
            trial, study = fields.get("trial_id", -1), fields.get("study_id")
            if trial >= len(self._replay.trials):
                raise KeyError(f"there is no trial of id {trial}")
            if study is not None and study not in self._replay.studies:
                raise KeyError(f"there is no study of id {study}")
            self._file.append({"op_code": operation, "worker_id": self._writer, **fields})
            refused = self._sync()
        if refused is not None:
            raise refused

    def _sync(self) -> Exception | None:
        """Apply the lines that are new; return why the last line of this thread changed nothing."""
        refused, replay, writer = None, self._replay, self._writer
        with self._file.turn:
            for line in self._file.read(replay.n_lines):
                n_trials = len(replay.trials)
                try:
                    by, why = replay.apply(line)
                except DamagedLineError as error:
                    raise damaged(self._file, error) from None
                self.n_foreign += not by.startswith(self._process)
                if by == writer:
                    refused = why
                    if len(replay.trials) > n_trials:
                        self._made[threading.get_ident()] = n_trials
        return refused


def _journal_fields(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial as Optuna's line of a journal tells it that begins a trial."""
    several = trial.values is not None and len(trial.values) > 1
    fields = {
        "state": int(trial.state),
        "value": None if several else trial.value,
        "values": trial.values if several else None,
        "datetime_start": _utc_text(trial.datetime_start),
        "distributions": {
            name: distribution_to_json(kind) for name, kind in trial.distributions.items()
        },
        "params": {
            name: trial.distributions[name].to_internal_repr(value)
            for name, value in trial.params.items()
        },
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "intermediate_values": trial.intermediate_values,
    }
    if trial.datetime_complete is not None:
        fields["datetime_complete"] = _utc_text(trial.datetime_complete)
    return fields


def _external_value(kind: BaseDistribution, stored: float) -> Any:
    """Return a parameter's value of the number that stands for it; ValueError where none does."""
    n = len(kind.choices) if isinstance(kind, CategoricalDistribution) else math.inf
    if not (0 if n < math.inf else -math.inf) <= stored < n:  # false for NaN
        raise ValueError(f"the value {stored!r} is not one of {shown(str(kind))}")
    return kind.to_external_repr(stored)


def _local_time(text: str | None) -> datetime | None:
    """Return a stored time as Optuna shows it: without a zone, by this machine's clock."""
    if text is None:
        return None
    # Through a timestamp it takes a third of the time of ``astimezone``.
    return datetime.fromtimestamp(datetime.fromisoformat(text).timestamp())


def _utc_text(time: datetime | None) -> str | None:
    """Return a time by this machine's clock as it is stored."""
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")
