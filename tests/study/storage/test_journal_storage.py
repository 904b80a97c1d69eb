"""Studies in a journal: what Optuna's own storage makes of the same lines, and damaged lines."""

from __future__ import annotations

import contextlib
import json
import math
import random

import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    distribution_to_json,
)
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal import JournalStorage as OptunasStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState

from paceline.errors import StorageError
from paceline.study.storage.journal import JournalFile
from paceline.study.storage.journal_storage import JournalStorage
from storage_calls import PATH, random_call, timeless


@pytest.mark.parametrize("seed", range(6))
def test_the_same_lines_say_the_same_to_optuna(seed):
    """Calls of both storages in turn, on one file: each sees what the other wrote."""
    ours, theirs = JournalStorage(JournalFile(PATH)), OptunasStorage(JournalFileBackend(str(PATH)))
    draw = random.Random(seed)
    ours.create_new_study([StudyDirection.MAXIMIZE], "s")
    ours.create_new_trial(0)
    for _ in range(150):
        with contextlib.suppress(RuntimeError, ValueError):  # of trials that have ended
            random_call(draw.choice([ours, theirs]), draw)
    for storage in (ours, JournalStorage(JournalFile(PATH))):
        assert repr(timeless(storage)) == repr(timeless(theirs))
        assert storage.get_study_user_attrs(0) == theirs.get_study_user_attrs(0)
        assert storage.get_study_system_attrs(0) == theirs.get_study_system_attrs(0)
        assert storage.get_study_directions(0) == theirs.get_study_directions(0)
        assert storage.get_n_trials(0) == theirs.get_n_trials(0) > 10


def test_an_optuna_study_runs_on_it():
    storage = JournalStorage(JournalFile(PATH))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=storage, study_name="s", direction="minimize")
    study.enqueue_trial({"x": 0.25})
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=5)
    assert study.trials[0].params == {"x": 0.25}
    theirs = OptunasStorage(JournalFileBackend(str(PATH)))
    again = optuna.load_study(study_name="s", storage=theirs)
    assert repr(timeless(theirs)) == repr(timeless(storage))
    assert again.best_value == study.best_value


def test_what_does_not_exist_or_has_ended_is_refused_and_not_written():
    storage = JournalStorage(JournalFile(PATH))
    study = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    with pytest.raises(optuna.exceptions.DuplicatedStudyError, match="exists"):
        storage.create_new_study([StudyDirection.MINIMIZE], "s")
    trial = storage.create_new_trial(study)
    storage.set_trial_state_values(trial, TrialState.FAIL)
    with pytest.raises(RuntimeError, match="trial 0 has finished"):
        storage.set_trial_user_attr(trial, "a", 1)
    n_lines = len(PATH.read_bytes().splitlines())
    with pytest.raises(KeyError, match="no trial of id 7"):
        storage.set_trial_user_attr(7, "a", 1)
    with pytest.raises(KeyError, match="no study of id 7"):
        storage.create_new_trial(7)
    assert len(PATH.read_bytes().splitlines()) == n_lines


def test_a_record_that_no_reader_takes_is_not_written():
    storage = JournalStorage(JournalFile(PATH))
    study = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    with pytest.raises(StorageError, match=r"search\.epochs is 'two'"):
        storage.set_study_user_attr(study, "paceline", {"search": {"epochs": "two"}})
    assert len(PATH.read_bytes().splitlines()) == 1
    storage.set_study_user_attr(study, "paceline", {"search": {"epochs": 2}})
    assert JournalStorage(JournalFile(PATH)).get_study_user_attrs(study)["paceline"]


def test_a_trial_that_somebody_has_does_not_change():
    storage = JournalStorage(JournalFile(PATH))
    study = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    trial = storage.create_new_trial(study)
    (before,) = storage.get_all_trials(study, deepcopy=False)
    storage.set_trial_user_attr(trial, "a", 1)
    storage.set_trial_intermediate_value(trial, 1, 0.5)
    storage.set_trial_state_values(trial, TrialState.COMPLETE, [0.5])
    assert (before.user_attrs, before.intermediate_values, before.values) == ({}, {}, None)
    (after,) = storage.get_all_trials(study, deepcopy=False)
    assert (after.user_attrs, after.intermediate_values, after.values) == (
        {"a": 1},
        {1: 0.5},
        [0.5],
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trial_id": "x"}, "trial_id is 'x': expected int, got str"),
        ({"trial_id": 10**400}, "trial_id is 1000.*: expected int <= 9007199254740992"),
        ({"trial_id": 3}, "it is of trial 3, which no line before it begins"),
        ({"op_code": 99}, "op_code is 99: invalid value 99"),
        ({"user_attr": {}}, "user_attr is {}: expected object of length >= 1"),
        ({"worker_id": None}, "worker_id is None: expected str, got null"),
        ({"op_code": 6, "state": 9}, "state is 9: invalid enum value 9"),
        ({"op_code": 6, "state": 1}, "a trial with 1 objective has the values None"),
        ({"op_code": 6, "state": 1, "values": [1, 2]}, r"has the values \[1.0, 2.0\]"),
        ({"op_code": 6, "state": 0, "datetime_start": "tomorrow"}, "[Ii]nvalid isoformat"),
        (
            {
                "op_code": 5,
                "param_name": "x",
                "param_value_internal": 7,
                "distribution": distribution_to_json(CategoricalDistribution([1])),
            },
            "the value 7.0 is not one of",
        ),
        (
            {
                "op_code": 5,
                "param_name": "x",
                "param_value_internal": 7,
                "distribution": '{"name": "IntDistribution", "attributes": {"low": 9, "high": 1}}',
            },
            "(low <= high|`low` value must be smaller)",  # Optuna 4.0 says the second
        ),
    ],
)
def test_a_damaged_line_is_named(change, said):
    storage = JournalStorage(JournalFile(PATH))
    storage.create_new_trial(storage.create_new_study([StudyDirection.MINIMIZE], "s"))
    line = {"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr": {"a": 1}, **change}
    with PATH.open("a") as file:
        file.write(json.dumps(line) + "\n")
    match = rf"storage journal:study.log: line 3 is damaged: .*{said}.*`paceline repair STUDY"
    with pytest.raises(StorageError, match=match):
        JournalStorage(JournalFile(PATH))
    for _ in range(2):  # it does not go away by itself
        with pytest.raises(StorageError, match="line 3"):
            storage.get_trial(0)


@pytest.mark.parametrize(
    "where", [b"user_attr", b"worker_id", b"trial_id", b"added_later", b"note"]
)
def test_a_bad_byte_is_damage_wherever_it_is(where):
    """Fields that the schema does not know included: Optuna's own reader reads all of a line."""
    storage = JournalStorage(JournalFile(PATH))
    storage.create_new_trial(storage.create_new_study([StudyDirection.MINIMIZE], "s"))
    line = {"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr": {"a": 1}}
    written = json.dumps({**line, "added_later": "a note"}).encode() + b"\n"
    with PATH.open("ab") as file:
        file.write(written.replace(where, where[:-1] + b"\xff"))
    with pytest.raises(StorageError, match="line 3 is damaged"):
        JournalStorage(JournalFile(PATH))


def test_a_number_that_json_does_not_know_is_read():
    storage = JournalStorage(JournalFile(PATH))
    trial = storage.create_new_trial(storage.create_new_study([StudyDirection.MINIMIZE], "s"))
    storage.set_trial_intermediate_value(trial, 1, math.nan)
    storage.set_trial_intermediate_value(trial, 2, -math.inf)
    found = JournalStorage(JournalFile(PATH)).get_trial(trial).intermediate_values
    assert math.isnan(found[1]) and found[2] == -math.inf
