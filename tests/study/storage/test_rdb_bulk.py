"""Batches written to a database's tables, against Optuna's own calls, which surely are right."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event

from paceline.errors import StorageError
from paceline.study.storage import rdb_bulk
from paceline.study.storage.events import (
    EpochReported,
    Record,
    StudyDescribed,
    TrialAnnotated,
    TrialCreated,
    TrialFinished,
)
from paceline.study.storage.rdb import close_connections
from paceline.study.storage.rdb_bulk import BulkWriter
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import WriteBehind

NAN, INF = math.nan, math.inf
#: One of a kind: what a trial's parameters may be.
SPACE: dict[str, tuple[BaseDistribution, Sequence[Any]]] = {
    "lr": (FloatDistribution(1e-5, 1.0, log=True), (1e-5, 0.1)),
    "rate": (FloatDistribution(0.0, 0.5, step=0.25), (0.25, 0.5)),
    "units": (IntDistribution(8, 1024, log=True), (8, 1024)),
    "layers[type=a]": (IntDistribution(1, 9, step=2), (3, 9)),
    "kind": (CategoricalDistribution(["é", None, 2, 0.5, True]), (None, "é")),
}
WHEN = datetime(2026, 3, 29, 1, 30, 0, 123456)
#: Attributes as Paceline has them, and some that are hard to keep.
ATTRS = {"hparams": {"é": [1, None, "\u2028"]}, "seed": 2**40, "history": {"loss": ["nan", 0.1]}}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """A function that makes an empty database and returns its URL."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").database
    names = iter(range(9))
    return lambda: f"sqlite:///{next(names)}.db"


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def opened() -> Iterator[Callable[..., StudyStorage]]:
    """A function that opens the study of a database; its connections end with the test."""
    stores: list[StudyStorage] = []

    def open_it(url: str, *, make: bool = True) -> StudyStorage:
        store = StudyStorage.of(url, "s", Path("runs"))
        stores.append(store)
        if make:
            store.create("s", ["maximize"], {"n": 0})
        return store

    yield open_it
    for store in stores:
        store.close()


@contextlib.contextmanager
def closed_afterwards(storage: optuna.storages.BaseStorage) -> Iterator[Any]:
    """A storage of Optuna's own: Python 3.13 warns of connections that nobody closes."""
    yield storage
    if isinstance(storage, optuna.storages.RDBStorage):
        close_connections(storage)


def rdb(store: StudyStorage) -> optuna.storages.RDBStorage:
    assert isinstance(store.storage, optuna.storages.RDBStorage)
    return store.storage


def begun(number: int, which: int = 0, **fields: Any) -> TrialCreated:
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.RUNNING,
        "value": None,
        "datetime_start": WHEN + timedelta(seconds=number),
        "datetime_complete": None,
        "params": {name: values[which] for name, (_, values) in SPACE.items()},
        "distributions": {name: distribution for name, (distribution, _) in SPACE.items()},
        "user_attrs": {**ATTRS, "seed": number},
        "system_attrs": {"paceline:owner": "0123456789abcdef"},
        "intermediate_values": {},
        "trial_id": 0,
    }
    return TrialCreated(number, FrozenTrial(**{**values, **fields}))


def batches() -> list[list[Record]]:
    """Two batches: what is new in the second continues trials of the first."""
    aware = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=-3)))
    fields: dict[str, Any] = {"params": {}, "distributions": {}, "datetime_start": aware}
    numbers = [0.5, NAN, INF, -INF, 1e-320, 1.7976931348623157e308]
    return [
        [
            *(begun(number, number % 2) for number in range(6)),
            begun(6, user_attrs={}, system_attrs={}, **fields),
            *(EpochReported(0, epoch, value) for epoch, value in enumerate(numbers, 1)),
            TrialFinished(0, "complete", [0.1 + 0.2], {"epochs": 6, "error": "é\n"}, WHEN),
            TrialFinished(1, "failed", None, {"value": "nan"}, aware),
            TrialFinished(2, "pruned", [-INF], {}, WHEN),
            TrialFinished(3, "complete", [INF], {}, WHEN, {"constraints": [0.5, -1.0]}),
            StudyDescribed({"n": 1, "é": [0.1]}),
        ],
        [
            *(EpochReported(4, epoch, value) for epoch, value in enumerate(numbers, 1)),
            EpochReported(4, 1, 0.25),
            TrialAnnotated(4, {"plan": "vectorized", "seed": -1}),
            begun(7),
            TrialAnnotated(4, {"plan": "looped"}),
            TrialAnnotated(6, {"first": {"a": 1}}),
            TrialFinished(4, "complete", [-INF], {"epochs": 5}),
            TrialFinished(5, "failed", None, {"error": "boom"}),
            EpochReported(6, 3, -0.0),
            TrialFinished(6, "pruned", [5e-324], noted={"constraints": [2.0]}),
            StudyDescribed({"n": 2}),
        ],
        [EpochReported(7, 1, 0.5), EpochReported(7, 1, NAN), TrialAnnotated(7, {"hparams": {}})],
    ]


def written(store: StudyStorage) -> tuple[list[FrozenTrial], dict[str, Any]]:
    writer = WriteBehind(store)
    writer.start("s")
    for batch in batches():
        writer.record(*batch)
        writer.flush()
    writer.close()
    assert writer.trouble is None
    study = store.study_id("s")
    return store.storage.get_all_trials(study), store.storage.get_study_user_attrs(study)


def seen(trial: FrozenTrial) -> dict[str, str]:
    """All there is of a trial; NaN equals itself, -0.0 is not 0.0, and 1 is not True.

    A database returns what belongs to a trial in any order.
    """
    return {
        name: repr(sorted(value.items(), key=str) if isinstance(value, dict) else value)
        for name, value in vars(trial).items()
    }


@pytest.mark.usefixtures("far_from_utc")
def test_every_field_is_as_with_optunas_own_calls(database, opened, monkeypatch):
    before = datetime.now()
    store = opened(database())
    trials, attrs = written(store)
    assert store.rows is not None
    monkeypatch.setattr(BulkWriter, "of", lambda storage: None)
    own = opened(database())
    expected, expected_attrs = written(own)
    after = datetime.now()
    assert own.rows is None
    assert len(trials) == len(expected) == 8
    assert attrs == expected_attrs == {"paceline": {"n": 2}}
    for trial, other in zip(trials, expected, strict=True):
        if trial.number in (4, 5, 6):  # they end now, by either's clock
            for one in (trial, other):
                assert one.datetime_complete is not None
                assert before <= one.datetime_complete <= after
                one.datetime_complete = None
        assert seen(trial) == seen(other)
    # A comparison of nothing with nothing would hold too.
    assert trials[0].datetime_start == WHEN
    assert [repr(trials[0].intermediate_values[epoch]) for epoch in range(1, 7)] == [
        "0.5",
        "nan",
        "inf",
        "-inf",
        "1e-320",
        "1.7976931348623157e+308",
    ]
    assert (trials[4].value, trials[4].intermediate_values[1]) == (-INF, 0.25)
    assert trials[4].user_attrs == {**ATTRS, "seed": -1, "plan": "looped", "epochs": 5}


def test_times_are_what_another_program_reads(database, opened):
    """Columns hold what this release of Optuna puts there: UTC from 5.0 on."""
    store = opened(database())
    assert store.rows is not None
    study = store.study_id("s")
    store.rows.write(study, [begun(0)], {})
    store.storage.create_new_trial(study, begun(0).template)
    with rdb(store).engine.connect() as connection:
        ours, optunas = connection.execute(sa.text("SELECT datetime_start FROM trials")).scalars()
    assert ours == optunas


@pytest.mark.slow
def test_trials_are_numbered_once_when_others_make_some_too(database, opened):
    """Two writers and Optuna itself, on one study."""
    url = database()
    study = opened(url).study_id("s")
    failures: list[BaseException] = []

    def write(store: StudyStorage, start: threading.Barrier) -> None:
        try:
            assert store.rows is not None
            start.wait(30)
            for _ in range(5):
                store.rows.write(study, [begun(number) for number in range(4)], {})
        except BaseException as error:
            failures.append(error)

    def create(store: StudyStorage, start: threading.Barrier) -> None:
        try:
            storage = store.storage
            start.wait(30)
            for number in range(20):
                storage.create_new_trial(study, begun(number).template)
        except BaseException as error:
            failures.append(error)

    barrier = threading.Barrier(3)
    stores = [opened(url, make=False) for _ in range(3)]
    threads = [
        threading.Thread(target=call, args=(store, barrier))
        for call, store in zip((write, write, create), stores, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    trials = stores[0].storage.get_all_trials(study)
    assert [trial.number for trial in trials] == list(range(60))
    assert all(len(trial.params) == len(SPACE) for trial in trials)


def test_a_batch_that_fails_leaves_nothing(database, opened):
    store = opened(database())
    assert store.rows is not None
    study = store.study_id("s")
    ids = store.rows.write(study, [begun(0)], {})
    other = begun(2)
    other.template.distributions["units"] = CategoricalDistribution([8, 16])
    batch = [EpochReported(0, 1, 0.5), begun(1), other, StudyDescribed({"n": 9})]
    for _ in range(2):  # what is remembered of the first one is not in the storage
        with pytest.raises(ValueError, match="different distribution kind"):
            store.rows.write(study, batch, ids)
    for missing in ({}, {7: 77}):
        with pytest.raises(KeyError, match="a trial is no longer in the storage"):
            store.rows.write(study, [begun(1), EpochReported(7, 1, 0.5)], missing)
    with pytest.raises(KeyError, match="study 77 is no longer in the storage"):
        store.rows.write(77, [begun(1)], {})
    (trial,) = store.storage.get_all_trials(study)
    assert trial.intermediate_values == {}
    assert store.storage.get_study_user_attrs(study) == {"paceline": {"n": 0}}


def test_a_trial_that_another_process_ended_is_left_as_it_is(database, opened):
    store = opened(database())
    writer = WriteBehind(store)
    writer.start("s")
    writer.record(begun(0), begun(1))
    writer.flush()
    study = store.study_id("s")
    first, second = store.storage.get_all_trials(study)
    store.storage.set_trial_state_values(first._trial_id, TrialState.FAIL)
    writer.record(
        EpochReported(0, 1, 0.5),
        EpochReported(1, 1, 0.5),
        TrialAnnotated(0, {"plan": "vectorized"}),
    )
    writer.record(
        TrialFinished(0, "complete", [0.5], {"epochs": 1}), TrialFinished(1, "complete", [0.25])
    )
    writer.close()
    first, second = store.storage.get_all_trials(study)
    assert (first.state, first.values, first.intermediate_values) == (TrialState.FAIL, None, {})
    assert first.user_attrs == {**ATTRS, "seed": 0}
    assert (second.state, second.value) == (TrialState.COMPLETE, 0.25)


def test_a_batch_whose_reply_is_lost_is_not_written_twice(database, opened, monkeypatch):
    write = BulkWriter.write

    def cut_off(self, *arguments):
        monkeypatch.setattr(BulkWriter, "write", write)
        write(self, *arguments)
        raise RuntimeError("connection lost")

    monkeypatch.setattr(BulkWriter, "write", cut_off)
    monkeypatch.setattr(WriteBehind, "WAITS", (0.0,))
    store = opened(database())
    writer = WriteBehind(store)
    writer.record(begun(0), begun(1), EpochReported(0, 1, 0.5), TrialFinished(0, "complete", [0.5]))
    writer.start("s")
    with pytest.raises(StorageError, match="connection lost"):
        writer.flush()
    writer.record(EpochReported(1, 1, 0.75), begun(2))
    writer.close()
    trials = store.storage.get_all_trials(store.study_id("s"))
    assert [(t.number, t.state.name, t.intermediate_values) for t in trials] == [
        (0, "COMPLETE", {1: 0.5}),
        (1, "RUNNING", {1: 0.75}),
        (2, "RUNNING", {}),
    ]


class Other(optuna.storages.RDBStorage):
    """Of a user who knows why."""


URL = "sqlite:///s.db"


@pytest.mark.parametrize(
    "make",
    [
        optuna.storages.InMemoryStorage,
        lambda: Other(URL),
        lambda: optuna.storages.RDBStorage(URL, {"isolation_level": "AUTOCOMMIT"}),
    ],
)
def test_other_storages_are_written_by_optuna(make):
    with closed_afterwards(make()) as storage:
        assert BulkWriter.of(storage) is None


@pytest.mark.parametrize(
    ("release", "known"),
    [("4.0.0", True), ("4.9.1", True), ("5.0.2", True), ("3.6.1", False), ("5.1.0", False)],
)
def test_only_releases_that_were_compared_are_trusted(release, known, monkeypatch):
    with closed_afterwards(optuna.storages.RDBStorage(URL)) as storage:
        monkeypatch.setattr(optuna, "__version__", release)
        assert (BulkWriter.of(storage) is not None) is known


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE trials ADD COLUMN more INTEGER",
        "ALTER TABLE trial_values RENAME TO others",
        "UPDATE alembic_version SET version_num = 'v9'",
    ],
)
def test_tables_that_are_not_those_known_are_optunas(change):
    with closed_afterwards(optuna.storages.RDBStorage(URL)) as storage:
        assert BulkWriter.of(storage) is not None
        with storage.engine.begin() as connection:
            connection.execute(sa.text(change))
        assert BulkWriter.of(storage) is None


def test_many_trials_take_a_handful_of_statements(database, opened):
    """What it is for. Optuna takes some sixty statements for each of these trials."""
    store = opened(database())
    assert store.rows is not None
    statements: list[str] = []
    event.listen(
        rdb(store).engine,
        "before_cursor_execute",
        lambda *arguments: statements.append(arguments[2]),
    )
    study = store.study_id("s")
    batch: list[Record] = [begun(number) for number in range(700)]
    ids = store.rows.write(study, batch, {})
    more = [EpochReported(number, 1, 0.5) for number in range(700)]
    statements.clear()
    store.rows.write(study, [*more, *(TrialFinished(n, "complete", [0.5]) for n in ids)], {})
    # Two parts each of asking for ids and states; lock, values, numbers, states.
    assert len(statements) <= 8
    found = store.storage.get_all_trials(study)
    assert [t.value for t in found] == [0.5] * 700
    assert rdb(store).get_current_version() == rdb_bulk.SCHEMA
