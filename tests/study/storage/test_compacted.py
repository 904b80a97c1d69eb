"""The compacted file beside a long journal says what the journal says, or is passed over."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState

from paceline.study.storage import compacted
from paceline.study.storage.journal import JournalFile
from paceline.study.storage.journal_storage import JournalStorage
from storage_calls import PATH, random_call, timeless

BESIDE = JournalFile(PATH).compacted


@pytest.fixture(autouse=True)
def _a_short_journal_is_long(monkeypatch):
    monkeypatch.setattr(compacted, "WORTHWHILE", 1)


def opened() -> JournalStorage:
    return JournalStorage(JournalFile(PATH))


def some_calls(storage: JournalStorage, draw: random.Random, n: int = 100) -> None:
    for _ in range(n):
        with contextlib.suppress(RuntimeError, ValueError):  # of trials that have ended
            random_call(storage, draw)


def journal(seed: int = 0) -> JournalStorage:
    storage = opened()
    storage.create_new_study([StudyDirection.MAXIMIZE], "s")
    storage.create_new_trial(0)
    some_calls(storage, random.Random(seed))
    return storage


def lines_read(monkeypatch) -> list[int]:
    """How many lines of the journal itself each opening reads, from now on."""
    found: list[int] = []
    real = JournalFile._read_on

    def counted(self, cut):
        found.append(0)
        for line in real(self, cut):
            found[-1] += 1
            yield line

    monkeypatch.setattr(JournalFile, "_read_on", counted)
    return found


def same(one: JournalStorage, other: JournalStorage) -> None:
    assert repr(timeless(one)) == repr(timeless(other))
    assert one.get_study_user_attrs(0) == other.get_study_user_attrs(0)
    assert one.get_study_system_attrs(0) == other.get_study_system_attrs(0)
    assert one.get_study_directions(0) == other.get_study_directions(0)
    assert one.n_foreign + other.n_foreign > 0


@pytest.mark.parametrize("seed", range(6))
def test_it_says_what_the_lines_say(seed, monkeypatch):
    storage = journal(seed)
    storage.compact()
    count = lines_read(monkeypatch)
    short = opened()
    assert sum(count) == 0
    BESIDE.unlink()
    same(short, opened())
    assert sum(count) > 100


def test_the_lines_after_it_are_read_and_written_on(monkeypatch):
    storage, draw = journal(), random.Random(1)
    storage.compact()
    some_calls(storage, draw, 30)
    count = lines_read(monkeypatch)
    short = opened()
    assert 10 < sum(count) < 40
    some_calls(short, draw, 30)  # trials that it has as under way are changed and ended
    some_calls(storage, draw, 30)
    short.compact()
    same(short, storage)
    same(opened(), storage)


def test_a_trial_under_way_and_one_that_waits_go_on():
    storage = journal()
    run, wait = storage.create_new_trial(0), storage.create_new_trial(0)
    storage.set_trial_state_values(wait, TrialState.WAITING)
    storage.compact()
    short = opened()
    assert short.set_trial_state_values(wait, TrialState.RUNNING)
    short.set_trial_state_values(run, TrialState.COMPLETE, [0.5])
    assert storage.get_trial(run).value == 0.5
    assert storage.get_trial(wait).state == TrialState.RUNNING


def other_journal(text: bytes) -> None:
    whole = PATH.read_bytes().replace(b'"study_name":"s"', b'"study_name":"t"', 1)
    PATH.write_bytes(whole)


def shorter_journal(text: bytes) -> None:
    PATH.write_bytes(b"".join(PATH.read_bytes().splitlines(keepends=True)[:-1]))


def other_header(**changed: object) -> Callable[[bytes], None]:
    def write(text: bytes) -> None:
        first, _, rest = text.partition(b"\n")
        BESIDE.write_bytes(json.dumps({**json.loads(first), **changed}).encode() + b"\n" + rest)

    return write


def true_digest_of_bad_lines(text: bytes) -> None:
    first, _, rest = text.partition(b"\n")
    body = rest.replace(b'"state":1', b'"state":9').replace(b'"state":3', b'"state":9')
    assert body != rest
    header = {**json.loads(first), "body": compacted.hashlib.sha256(body).hexdigest()}
    BESIDE.write_bytes(json.dumps(header).encode() + b"\n" + body)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: BESIDE.write_bytes(b""),
        lambda text: BESIDE.write_bytes(text[:-40]),
        lambda text: BESIDE.write_bytes(text.replace(b"0.5", b"0.7", 1)),
        lambda text: BESIDE.write_bytes(b"\xff\x00{" + text),
        lambda text: BESIDE.write_bytes(b"[" * 100_000),
        lambda text: (BESIDE.unlink(), BESIDE.mkdir()),
        lambda text: (BESIDE.unlink(), os.mkfifo(BESIDE)),
        other_header(format=2),
        other_header(n_bytes=5),
        other_header(n_bytes=-1),
        other_header(n_bytes=2**52),
        other_header(journal=""),
        true_digest_of_bad_lines,
        shorter_journal,
        other_journal,
    ],
)
def test_what_does_not_fit_is_passed_over(damage, monkeypatch):
    storage = journal()
    storage.compact()
    assert b"0.5" in BESIDE.read_bytes()
    damage(BESIDE.read_bytes())
    count = lines_read(monkeypatch)
    found = opened()
    assert sum(count) > 100
    if damage not in (shorter_journal, other_journal):
        same(found, storage)
    assert found.get_study_name_from_id(0) == ("t" if damage is other_journal else "s")


def test_a_file_that_is_replaced_while_it_is_read_stays_one():
    storage = journal()
    storage.compact()
    n_trials = storage.get_n_trials(0)
    with compacted.reading(JournalFile(PATH)) as (header, records):
        some_calls(storage, random.Random(2))
        storage.compact()  # by a search that ends meanwhile
        with compacted.reading(JournalFile(PATH)) as (newer, _):
            assert newer.n_lines > header.n_lines
        n_lines = len(list(records))
    assert n_trials < n_lines < n_trials + 10 < storage.get_n_trials(0)


def test_a_full_disk_leaves_the_file_that_was_there(monkeypatch):
    storage = journal()
    storage.compact()
    before = BESIDE.read_bytes()
    some_calls(storage, random.Random(3))

    def fails(record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compacted, "line_of", fails)
    with pytest.raises(OSError, match="No space"):
        storage.compact()
    assert BESIDE.read_bytes() == before
    assert sorted(os.listdir(Path())) == [PATH.name, BESIDE.name]


def test_a_short_journal_has_none(monkeypatch):
    monkeypatch.setattr(compacted, "WORTHWHILE", 2**20)
    journal().compact()
    assert not BESIDE.exists()


def test_a_journal_with_a_deleted_study_has_none():
    storage = journal()
    storage.create_new_study([StudyDirection.MINIMIZE], "other")
    storage.delete_study(1)
    with pytest.raises(LookupError, match="1"):
        storage.compact()
    assert os.listdir(Path()) == [PATH.name]


def test_a_search_leaves_one_and_goes_on_from_it(monkeypatch):
    import paceline
    from paceline.study.view import StudyView

    def build(hp):
        import keras

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1)), "mse")
        return model

    def search(n_trials: int) -> paceline.Tuner:
        x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
        tuner = paceline.Tuner(build, objective="min:loss", study="s", sampler="random")
        tuner.search(x, y, n_trials=n_trials, epochs=1, batch_size=4, verbose=0)
        return tuner

    search(3)
    path = Path("runs/s/journal.log")
    assert JournalFile(path).compacted.is_file()
    count = lines_read(monkeypatch)
    view = StudyView.open("s")
    assert [trial.number for trial in view.trials] == [0, 1, 2]
    assert sum(count) <= 1 < len(path.read_bytes().splitlines())  # the search's end is after it
    table = search(5).results()
    assert len(table) == 5
    JournalFile(path).compacted.unlink()
    again = StudyView.open("s")
    assert sorted(trial.value for trial in again.trials) == sorted(table["value"])
