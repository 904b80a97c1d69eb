"""A study that other programs change while it is searched: plain Optuna, a dashboard, our commands.

Other programs open the storage by themselves, here in a thread: a journal is a file to them.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import RDBStorage
from optuna.trial import TrialState

import paceline
import toys
from as_optuna import optuna_study
from marks import slow_where
from paceline.executor.base import EpochReport
from paceline.report.progress import read_live, watch
from paceline.study.sharing import requests
from paceline.study.sharing.watch import StudyWatch
from paceline.study.storage.storage import StudyStorage
from paceline.tuner.search.loop import EpochReports
from stopping import by_epochs, hears_signals, stopped_after, trials_of  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 6,
    "batch_size": 16,
    "verbose": 0,
}
EPOCHS = 12
OURS = "hparams"  # an attribute that only Paceline's trials have


@pytest.fixture(params=["journal", *slow_where(["sqlite", "postgresql"], bool)])
def storage(request, fresh_folder: Path) -> str | None:
    """None for the journal in the study's folder."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").database()
    return None if request.param == "journal" else f"sqlite:///{fresh_folder}/s.db"


def opened(storage: str | None) -> optuna.Study:
    """The study, as another program opens it."""
    if storage is None:
        return optuna_study()
    found = RDBStorage(storage, engine_kwargs={"poolclass": sqlalchemy.pool.NullPool})
    return optuna.load_study(study_name="s", storage=found)


def meanwhile(act: Callable[[], None]) -> Callable[[], None]:
    """Begins to act in a thread; returns what waits for its end and raises what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(120)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    return join


def wait_for(what: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came")


def request(storage: str | None, what: requests.Request) -> None:
    store = StudyStorage.of(storage, "s", Path("runs"))
    requests.ask(store, store.study_id("s"), what)
    store.close()


def tell(study: optuna.Study, number: int, state: TrialState) -> bool:
    """Ends a trial as the dashboard does; returns whether it had not ended before."""
    storage = study._storage  # as optuna-dashboard reaches it
    found = storage.get_trial_id_from_study_id_trial_number(study._study_id, number)
    try:
        return bool(storage.set_trial_state_values(found, state))
    except RuntimeError:  # it has ended
        return False


def tuner(storage: str | None, **arguments: Any) -> paceline.Tuner:
    settings: dict[str, Any] = {
        "sampler": "random",
        "parallel_trials": 4,
        "on_note": lambda text: None,
    }
    return paceline.Tuner(toys.dense, study="s", storage=storage, **(settings | arguments))


def facts(found: paceline.Tuner) -> list[tuple[Any, ...]]:
    trials = trials_of(found)
    return [(t.number, t.state, t.value, t.hparams) for t in trials]


class Disturber:
    """Does random things to a study that is searched, as other programs may."""

    def __init__(self, study: optuna.Study, seed: int) -> None:
        self._study, self._random = study, random.Random(seed)
        self._values = itertools.count()
        self.enqueued: list[float] = []
        self.told: dict[int, TrialState] = {}
        self.asked: list[optuna.Trial] = []

    def act(self) -> None:
        acts = [self.enqueue, self.ask, self.tell_asked, self.note, self.tell_theirs]
        self._random.choices(acts, weights=[4, 4, 4, 4, 1])[0]()

    def enqueue(self) -> None:
        value = 0.01 + next(self._values) * 1e-5
        self._study.enqueue_trial({"lr": value}, user_attrs={"mine": value})
        self.enqueued.append(value)

    def ask(self) -> None:
        """Another process that optimises the study takes what waits, as ours does."""
        if len(self.asked) < 3:
            self.asked.append(self._study.ask())

    def tell_asked(self) -> None:
        if self.asked:
            # On SQLite two programs may take one trial that waits: the first end stands.
            with contextlib.suppress(ValueError):
                self._study.tell(self.asked.pop(), 0.5)

    def tell_theirs(self) -> None:
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if running := [trial.number for trial in trials if OURS in trial.user_attrs]:
            number = self._random.choice(running)
            state = self._random.choice([TrialState.FAIL, TrialState.PRUNED])
            if tell(self._study, number, state):
                self.told[number] = state

    def note(self) -> None:
        self._study.set_user_attr("note", self._random.random())


@pytest.mark.parametrize("n", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_whatever_others_do_no_trial_is_lost_doubled_or_misnumbered(storage, n: int) -> None:
    seen: dict[str, Any] = {}
    begun = threading.Event()  # before, the tables are being made

    def disturb() -> None:
        assert begun.wait(60)
        study = opened(storage)
        try:
            other = seen["other"] = Disturber(study, seed=n)
            for _ in range(n):
                other.act()
            while other.asked:
                other.tell_asked()
            waits, ended = (TrialState.WAITING,), (TrialState.COMPLETE,)
            wait_for(lambda: not study.get_trials(deepcopy=False, states=waits))
            wait_for(lambda: sum(OURS in t.user_attrs for t in study.get_trials(states=ended)) > 1)
        finally:
            request(storage, "stop")

    join = meanwhile(disturb)
    searched = tuner(storage, on_progress=lambda seen: begun.set() if seen.trial_epochs else None)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        searched.search(X, Y, n_trials=100_000, **CALL)
    join()
    other: Disturber = seen["other"]
    study = opened(storage)
    stored = study.get_trials(deepcopy=False)
    assert [trial.number for trial in stored] == list(range(len(stored)))
    ours = [trial for trial in stored if OURS in trial.user_attrs]
    # None doubled: each of ours has a seed and a configuration of its own.
    assert len({trial.user_attrs["seed"] for trial in ours}) == len(ours)
    assert len({str(trial.user_attrs[OURS]) for trial in ours}) == len(ours)
    for trial in ours:
        assert trial.params == trial.user_attrs[OURS]
    # None lost: whatever was enqueued has run once, here or in the other program.
    by_us = [trial.params["lr"] for trial in ours if "mine" in trial.user_attrs]
    mine = [trial for trial in stored if "mine" in trial.user_attrs]
    by_them = [trial.user_attrs["mine"] for trial in mine if OURS not in trial.user_attrs]
    assert sorted(by_us + by_them) == sorted(other.enqueued)
    assert by_us
    assert by_them
    # None misnumbered: this process, the storage and a process that opens it agree.
    assert other.told
    for number, state in other.told.items():
        assert stored[number].state == state
    again = tuner(storage)
    under_way = {"running", "paused"}
    here, there = ([f for f in facts(t) if f[1] not in under_way] for t in (searched, again))
    differ = [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]
    if storage is not None and storage.startswith("sqlite"):
        # Optuna looks whether a trial has ended in one transaction and ends it in the next: SQLite
        # lets the other program write over an end that came between.
        differ = [pair for pair in differ if pair[0][0] not in other.told]
    assert differ == []
    assert len(here) == len(there)
    assert len(again.results()) == len(stored)
    # What is stored under a number is that trial.
    trained = [t for t in ours if t.intermediate_values]  # not one that both took on SQLite
    complete = [t.number for t in trained if t.state == TrialState.COMPLETE]
    for number in (complete[0], complete[-1]):
        # Other slot counts change the order of sums.
        assert max(again.reproduce(number, X, Y, **CALL).differences.values()) < 1e-4


# -- each by itself --------------------------------------------------------------------------------


@pytest.fixture
def searched(storage, notes, monkeypatch) -> Callable[..., paceline.Tuner]:
    """Searches while a function of Optuna's study acts, before the first epoch is known."""

    looks: list[None] = []
    look = StudyWatch.look

    def counted(watch: StudyWatch) -> None:
        look(watch)
        looks.append(None)

    monkeypatch.setattr(StudyWatch, "look", counted)
    by_epochs(monkeypatch)

    def search(act: Callable[[optuna.Study], None], **arguments: Any) -> paceline.Tuner:
        begun, acted = threading.Event(), threading.Event()

        def disturb() -> None:
            assert begun.wait(60)
            try:
                act(opened(storage))
                n = len(looks)  # the next look may have begun before
                wait_for(lambda: len(looks) >= n + 2)
            finally:
                acted.set()

        receive = EpochReports.receive

        def held(reports: EpochReports, report: EpochReport) -> Any:
            begun.set()
            acted.wait(60)
            return receive(reports, report)

        monkeypatch.setattr(EpochReports, "receive", held)
        join = meanwhile(disturb)
        tuned = tuner(storage, on_note=notes.append)
        try:
            call: dict[str, Any] = {**CALL, "n_trials": 6, "epochs": EPOCHS, **arguments}
            tuned.search(X, Y, **call)
        finally:
            join()
        return tuned

    return search


def test_what_others_enqueue_is_trained_and_what_cannot_be_says_why(searched, notes) -> None:
    def act(study: optuna.Study) -> None:
        study.enqueue_trial({"lr": 0.05}, user_attrs={"asked by": "me"})
        study.enqueue_trial({"lr": 7.0})
        study.enqueue_trial({"lrr": 0.05})

    found = searched(act)
    results = found.results()
    assert results["number"].tolist() == list(range(len(results)))
    (trial,) = [t for t in map(found.trial, results["number"]) if t.hparams.get("lr") == 0.05]
    assert (trial.state, trial.epochs) == ("complete", EPOCHS)
    study = found.optuna_study()
    assert study.trials[trial.number].user_attrs["asked by"] == "me"
    failed = results[results["state"] == "failed"]
    assert failed["reason"].str.contains("lr cannot be|value 7.0 is not").sum() == 1
    assert failed["reason"].str.contains("the hyperparameter 'lrr'").sum() == 1
    assert sum("skipped the enqueued trial" in note for note in notes) == 2


@pytest.mark.slow
def test_what_waits_when_a_search_ends_is_trained_by_the_next(storage) -> None:
    tuner(storage).search(X, Y, n_trials=2, **CALL)
    opened(storage).enqueue_trial({"lr": 0.05})
    again = tuner(storage)
    again.search(X, Y, n_trials=3, **CALL)
    assert again.results()["state"].tolist() == ["complete"] * 3
    assert again.trial(2).hparams["lr"] == 0.05


@pytest.mark.parametrize(
    "state", slow_where([TrialState.FAIL, TrialState.PRUNED], TrialState.FAIL.__eq__)
)
def test_a_trial_that_others_end_ends_here(searched, notes, state) -> None:
    told: list[int] = []

    def act(study: optuna.Study) -> None:
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        told.append(running[-1].number)
        assert tell(study, told[0], state)

    found = searched(act)
    ended = {TrialState.FAIL: "failed", TrialState.PRUNED: "pruned"}[state]
    assert found.trial(told[0]).state == ended
    assert found.trial(told[0]).epochs < EPOCHS
    assert (found.results()["state"] == "complete").sum() == 5
    assert any(f"trial {told[0]} ends, {ended}" in note for note in notes)
    assert found.best_trial.number != told[0]


def test_a_search_stops_and_pauses_when_it_is_asked(searched, storage, notes) -> None:
    with pytest.raises(KeyboardInterrupt, match="^$"):
        searched(lambda study: request(storage, "stop"))
    (said,) = [note for note in notes if "stop" in note or "interrupted" in note]
    assert said.startswith("stopped by `paceline stop` with ")
    again = tuner(storage, on_note=notes.append)  # which nobody has asked to stop
    again.search(X, Y, **{**CALL, "n_trials": 6, "epochs": EPOCHS})
    assert again.results()["state"].tolist() == ["complete"] * 6
    assert any("resuming from the last checkpoint" in note for note in notes)


def test_a_paused_study_waits(storage, notes) -> None:
    tuner(storage).search(X, Y, n_trials=1, **CALL)
    request(storage, "pause")
    began, said = time.monotonic(), []
    folder = Path("runs/s")

    def go_on() -> None:
        watch(folder)
        wait_for(
            lambda: (state := read_live(folder)) is not None and state.progress.phase == "paused"
        )
        while not any("paused by" in note for note in notes) and time.monotonic() - began < 60.0:
            time.sleep(0.05)
        time.sleep(1.0)
        request(storage, "continue")

    join = meanwhile(go_on)
    again = tuner(storage, on_note=notes.append, on_progress=said.append)
    again.search(X, Y, n_trials=2, **CALL)
    join()
    phases = [progress.phase for progress in said]
    assert "paused" in phases
    assert phases[-1] == "done"  # its two epochs may be too short to be shown
    assert time.monotonic() - began > 1.0
    assert [note.split(". ")[0] for note in notes if "pause" in note] == [
        "paused by `paceline pause`",
        "continuing after the pause",
    ]
    assert again.results()["state"].tolist() == ["complete"] * 2


@pytest.mark.slow
def test_a_checkpoint_is_gone_on_from_where_others_added_trials(
    storage, notes, monkeypatch
) -> None:
    """To the bit: numbers that others took are skipped, and seeds are those that are stored."""
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner(storage).search(X, Y, n_trials=8, **CALL)
    study = opened(storage)
    study.tell(study.ask(), 0.5)  # takes the next number
    again = tuner(storage, on_note=notes.append)
    again.search(X, Y, n_trials=9, **CALL)
    assert any("resuming from the last checkpoint" in note for note in notes)
    stored = study.get_trials(deepcopy=False)
    ours = [trial for trial in stored if OURS in trial.user_attrs]
    assert len(ours) == 8
    assert {trial.state for trial in ours} == {TrialState.COMPLETE}
    for trial in (ours[0], ours[-1]):
        differences = again.reproduce(trial.number, X, Y, **CALL).differences
        assert max(differences.values()) < 1e-4  # other slot counts: other sums


def test_optuna_shows_the_metric_by_its_name(storage) -> None:
    found = tuner(storage)
    found.search(X, Y, n_trials=1, **CALL)
    study = found.optuna_study()
    assert study.metric_names == ["val_accuracy"]
    assert study.best_value == found.best_trial.value
    study.set_user_attr("note", "mine")
    assert opened(storage).user_attrs["note"] == "mine"


def test_a_build_may_prune_its_trial(storage) -> None:
    def build(hp: Any) -> Any:
        if hp.Float("lr", 1e-3, 1e-1) > 0.05:
            raise optuna.TrialPruned
        return toys.softmax_at(hp.get("lr"))

    found = paceline.Tuner(build, study="s", storage=storage, sampler="random", parallel_trials=4)
    found.search(X, Y, n_trials=12, **CALL)
    for trial in map(found.trial, range(12)):
        assert trial.state == ("pruned" if trial.hparams["lr"] > 0.05 else "complete")
    assert {"pruned", "complete"} == set(found.results()["state"])
