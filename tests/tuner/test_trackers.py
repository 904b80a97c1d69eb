"""Trackers are told of every trial once, in a thread of their own, and never hold up a search."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
import toys
from paceline.errors import UsageError
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments import provenance
from paceline.tuner.search import run
from paceline.tuner.trackers.base import TrackedStudy, Tracker
from paceline.tuner.trackers.choice import make_trackers
from paceline.tuner.trackers.threads import SessionTracker, TrackersOfSession, TrackerThreads
from paceline.tuner.trackers.values import epochs_of

CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 2, "verbose": 0}


class Told:
    """A tracker that remembers what it is told."""

    def __init__(self, known: Collection[int] | None = ()) -> None:
        self.known = known
        self.study: TrackedStudy | None = None
        self.trials: list[Trial] = []
        self.ends: list[tuple[Trial | None, Any]] = []
        self.threads: set[int] = set()

    def begin(self, study: TrackedStudy) -> Collection[int] | None:
        self.study = study
        return self.known

    def log_trial(self, trial: Trial) -> None:
        self.threads.add(threading.get_ident())
        self.trials.append(trial)

    def end(self, best: Trial | None, model: Any) -> None:
        self.ends.append((best, model))


class Fails(Told):
    """A tracker that fails at its second trial."""

    def log_trial(self, trial: Trial) -> None:
        super().log_trial(trial)
        if len(self.trials) == 2:
            raise ConnectionError("no route to the server\nmore lines")


def search(track: Any, n_trials: int = 4, notes: list[str] | None = None, **options: Any) -> Any:
    said = [] if notes is None else notes
    tuner = paceline.Tuner(
        toys.dense, study="s", sampler="random", trackers=track, on_note=said.append, **options
    )
    tuner.search(*toys.data(), n_trials=n_trials, **CALL)
    return tuner


def test_a_tracker_is_told_of_every_trial_and_of_the_best_model() -> None:
    told = Told()
    tuner = search(told)
    assert told.study is not None
    assert (told.study.name, told.study.objective) == ("s", "val_accuracy")
    assert told.study.direction == "maximize"
    assert told.study.meta["sampler"] == "random"
    assert sorted(trial.number for trial in told.trials) == [0, 1, 2, 3]
    for trial in told.trials:
        assert trial == tuner.trial(trial.number)
        assert trial is not tuner.trial(trial.number)
    ((best, model),) = told.ends
    assert best == tuner.best_trial
    assert model.is_file()
    assert told.threads.isdisjoint({threading.get_ident()})


def test_a_tracker_is_told_of_all_objectives_and_of_the_best_by_the_first() -> None:
    told = Told()
    tuner = search(told, objective=["val_accuracy", "params"])
    assert told.study is not None
    assert (told.study.objective, told.study.objectives) == (
        "val_accuracy",
        ["val_accuracy", "params"],
    )
    for trial in told.trials:
        of_all = {"val_accuracy": trial.value, "params": trial.costs["params"]}
        assert told.study.values_of(trial) == of_all
    ((best, model),) = told.ends
    assert best == tuner.pareto()[0]
    assert model.is_file()


def test_a_tracker_is_told_of_the_members_of_a_population_and_of_their_copies() -> None:
    told = Told()
    tuner = search(told, pruner=paceline.PBT(perturbation_interval=1), objective="val_loss")
    numbers = tuner.results()["number"].tolist()
    assert sorted(trial.number for trial in told.trials) == numbers
    copies = {t.number: t.continued_from for t in told.trials if t.continued_from is not None}
    assert copies and all(tuner.trial(n).continued_from == source for n, source in copies.items())


def test_a_tracker_may_say_where_its_runs_are() -> None:
    told, notes = Told(), []
    told.where = "`look there` shows them"
    search(told, notes=notes)
    assert [note for note in notes if "look there" in note] == ["Told: `look there` shows them"]


def test_trials_stay_in_packs() -> None:
    tuner = search(Told())
    assert {trial.plan for trial in tuner.results().itertuples()} == {"vectorized"}


@pytest.mark.slow
def test_a_study_that_goes_on_tells_what_the_tracker_lacks() -> None:
    search(None)
    told = Told(known={1})
    search(told, n_trials=5)
    assert [trial.number for trial in told.trials][:3] == [0, 2, 3]
    assert sorted(trial.number for trial in told.trials) == [0, 2, 3, 4]


@pytest.mark.slow
def test_a_tracker_may_want_new_trials_alone() -> None:
    search(None)
    told = Told(known=None)
    search(told, n_trials=5)
    assert [trial.number for trial in told.trials] == [4]


def test_failed_trials_are_told_too() -> None:
    def build(hp: Any) -> Any:
        if hp.Int("width", 1, 8) > 5:
            raise ValueError("too wide")
        return toys.dense(hp)

    told = Told()
    tuner = paceline.Tuner(
        build, study="s", sampler="random", trackers=told, on_note=lambda text: None
    )
    tuner.search(*toys.data(), n_trials=8, **CALL)
    states = {trial.state for trial in told.trials}
    assert states == {"complete", "failed"}
    assert len(told.trials) == 8


def test_a_tracker_that_fails_is_noted_once_and_the_others_go_on() -> None:
    fails, told, notes = Fails(), Told(), []
    tuner = search([fails, told], notes=notes)
    assert len(told.trials) == len(tuner.results()) == 4
    assert len(fails.trials) == 2
    said = [note for note in notes if "Fails" in note]
    assert said == ["Fails no longer logs this search: ConnectionError: no route to the server"]


@pytest.mark.slow
def test_a_tracker_that_hangs_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(TrackerThreads, "PATIENCE", 0.3)
    released = threading.Event()

    class Hangs(Told):
        def begin(self, study: TrackedStudy) -> Collection[int] | None:
            released.wait(60)
            return ()

    notes: list[str] = []
    try:
        tuner = search(Hangs(), notes=notes)
        assert len(tuner.results()) == 4
        assert any("stopped waiting for Hangs: 4 trials are not logged" in n for n in notes)
    finally:
        released.set()


def of_process(tracker: Tracker) -> SessionTracker:
    """A tracker as a search in the session's process has it."""
    functions = TrackersOfSession({"t": tracker}).functions
    return SessionTracker("t", lambda name, *arguments: functions[name](*arguments))


def begun(
    tracker: Any,
    trials: Collection[Trial] = (),
    name: str = "s",
    notes: list[str] | None = None,
    **writer: bool,
) -> tuple[TrackerThreads, Any]:
    """The threads of a search of a study with trials, which has begun, and the study."""

    class Table(list[Trial]):
        several, best = False, None

    study: Any = SimpleNamespace(
        trials=Table(trials),
        writer=SimpleNamespace(**{"unnumbered": False, **writer}),
        peers=SimpleNamespace(shared=False),
    )
    said: list[str] = [] if notes is None else notes
    threads = TrackerThreads({"t": tracker}, study, said.append)
    threads.begin(TrackedStudy(name, "val_loss", "minimize", Path("runs") / name, {}))
    return threads, study


def test_numbers_that_the_storage_has_not_confirmed_wait() -> None:
    told = Told()
    threads, study = begun(told, unnumbered=True)
    trial = Trial(3, "complete")
    threads.log_trial(trial)
    threads.pass_on()
    time.sleep(0.05)
    assert told.trials == []
    trial.number, study.writer.unnumbered = 5, False
    threads.pass_on()
    threads._threads[0].finish(None, None)
    assert threads._threads[0].join(10)
    assert [trial.number for trial in told.trials] == [5]


@pytest.mark.parametrize(
    ("track", "why"),
    [
        ("neptune", "trackers must be one of mlflow, wandb, tensorboard, .* got 'neptune'"),
        ("tensorboard+model", "TensorBoard stores no models"),
        (7, "trackers must be mlflow, wandb, tensorboard or objects"),
        (Told, "trackers must be"),
        ([Told(), Told()], "trackers: Told appears twice"),
    ],
)
def test_what_is_no_tracker_is_refused_before_the_search(track, why, monkeypatch) -> None:
    monkeypatch.setattr("paceline.tuner.trackers.choice.find_spec", lambda name: object())
    with pytest.raises(UsageError, match=why):
        paceline.Tuner(toys.dense, study="s", trackers=track)


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_package_that_is_not_installed_is_named(name, monkeypatch) -> None:
    monkeypatch.setattr("paceline.tuner.trackers.choice.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf'pip install "paceline\[{name}\]"'):
        make_trackers(name)


def test_known_trackers_have_the_methods(monkeypatch) -> None:
    monkeypatch.setattr("paceline.tuner.trackers.choice.find_spec", lambda name: object())
    found = make_trackers(["mlflow+model", "wandb", "tensorboard"])
    assert list(found) == ["mlflow", "wandb", "tensorboard"]
    assert all(isinstance(tracker, Tracker) for tracker in found.values())


def test_numbers_that_are_not_finite_are_left_out() -> None:
    trial = Trial(0, epochs=3, history={"a": [1.0, float("nan"), 3.0], "b": [1.0, float("inf")]})
    assert list(epochs_of(trial)) == [(1, {"a": 1.0, "b": 1.0}), (3, {"a": 3.0})]


def test_trials_that_come_again_are_told_once() -> None:
    """A search that goes on from a checkpoint trains some trials again that were told before."""

    class Knows(Told):
        def begin(self, study: TrackedStudy) -> Collection[int] | None:
            super().begin(study)
            return {0, 2}

    told = Knows()
    search(told, 4)
    assert sorted(trial.number for trial in told.trials) == [1, 3]


@pytest.mark.slow
def test_a_study_begun_anew_is_another_one() -> None:
    told = [Told(), Told()]
    for each, fresh in zip(told, (False, True), strict=True):
        search(each, 1, overwrite=fresh)
    first, second = (each.study.identity for each in told)
    assert first != second
    again = Told()
    search(again, 2)
    assert again.study.identity == second


def same(tracker: Tracker) -> Tracker:
    """The tracker itself, as a search in the session has it."""
    return tracker


@pytest.mark.parametrize("of_first", [same, of_process])
@pytest.mark.parametrize("of_second", [same, of_process])
@pytest.mark.parametrize("name", ["s", "other"])
def test_a_search_that_begins_while_trials_of_the_last_one_are_logged_waits(
    monkeypatch, name: str, of_first: Any, of_second: Any
) -> None:
    """As where a cell is interrupted and run again: the tracker is late, and lives on."""
    monkeypatch.setattr(TrackerThreads, "HURRY", 0.0)
    released = threading.Event()

    class Slow(Told):
        def begin(self, study: TrackedStudy) -> Collection[int] | None:
            super().begin(study)
            return {trial.number for trial in self.trials}

        def log_trial(self, trial: Trial) -> None:
            released.wait(60)
            super().log_trial(trial)
            of.append(self.study and self.study.name)

    of: list[Any] = []
    slow, trials = Slow(), [Trial(number, "complete") for number in range(3)]
    first, _ = begun(of_first(slow))
    for trial in trials:
        first.log_trial(trial)
    first.close(lambda trial: None, hurried=True)
    second, _ = begun(of_second(slow), trials, name)
    second.log_trial(Trial(3, "complete"))
    released.set()
    second.close(lambda trial: None)
    assert [trial.number for trial in slow.trials] == [0, 1, 2, 3]
    assert of == ["s", "s", "s", name]
    assert len(slow.ends) == 2


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "s3cr3t", "--epochs", "3"], "--api-key '***' --epochs 3"),
        (["--password=s3cr3t", "WANDB_API_KEY=s3cr3t"], "'--password=***' 'WANDB_API_KEY=***'"),
        (["--token", "--quiet"], "--token --quiet"),
        (["--keep-best", "3", "--author", "me", "a-token"], "--keep-best 3 --author me a-token"),
        (
            ["--storage", "postgresql://me:s3cr3t@host/db"],
            "--storage 'postgresql://me:***@host/db'",
        ),
    ],
)
def test_secrets_on_the_command_line_are_told_to_nobody(words, shown, monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "search.py", *words])
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of another test
    assert provenance.how_started(None)["command"] == f"python search.py {shown}"


@pytest.mark.parametrize("of_second", [same, of_process])
def test_of_two_searches_that_run_at_once_a_tracker_logs_one_after_the_other(
    of_second: Any,
) -> None:
    """In two threads, or one in a callback of the other: that one must not wait for the first."""
    of: list[Any] = []

    class Notes(Told):
        def log_trial(self, trial: Trial) -> None:
            of.append((self.study and self.study.name, trial.number))

        def end(self, best: Trial | None, model: Any) -> None:
            super().end(best, model)
            if len(self.ends) == 2:
                both.set()

    told, both, notes = Notes(), threading.Event(), list[str]()
    first, _ = begun(told)
    second, _ = begun(of_second(told), name="other", notes=notes)
    second.log_trial(Trial(7, "complete"))
    second.close(lambda trial: None)
    assert notes == [
        "t logs another search that still runs: 1 trials of this one are logged after it. If the "
        "program ends before, the next search on the study logs them. To log both at once, pass "
        "each search its own tracker"
    ]
    assert of == []
    first.log_trial(Trial(0, "complete"))
    first.close(lambda trial: None)
    assert both.wait(20)
    assert of == [("s", 0), ("other", 7)]


def test_a_process_that_died_leaves_the_tracker_to_the_next_one() -> None:
    told = Told()
    session = TrackersOfSession({"t": told})

    def ask(name: str, *arguments: Any) -> Any:
        return session.functions[name](*arguments)

    first, _ = begun(SessionTracker("t", ask))
    first.log_trial(Trial(0, "complete"))
    first.pass_on()
    session.end_call()
    told.known = {0}
    second, _ = begun(SessionTracker("t", ask), [Trial(0, "complete")])
    second.log_trial(Trial(1, "complete"))
    second.close(lambda trial: None)
    assert [trial.number for trial in told.trials] == [0, 1]
    assert len(told.ends) == 1


def test_an_error_of_a_tracker_of_the_session_is_noted_with_the_next_trial() -> None:
    notes: list[str] = []
    search, _ = begun(of_process(Fails()), notes=notes)
    for number in range(30):
        search.log_trial(Trial(number, "complete"))
        search.pass_on()
        time.sleep(0.01)
        if notes:
            break
    assert notes == ["t no longer logs this search: ConnectionError: no route to the server"]
    search.close(lambda trial: None)
    assert len(notes) == 1


@pytest.mark.parametrize("of_search", [same, of_process])
@pytest.mark.parametrize("ends", [True, False])
def test_where_runs_are_is_asked_in_the_trackers_thread_at_its_end(
    of_search: Any, ends: bool
) -> None:
    class Runs(Told):
        """A tracker whose property needs what the last method makes."""

        @property
        def where(self) -> str:
            self.threads.add(threading.get_ident())
            return {len(self.ends): "https://runs/s"}[1 if ends else 0]

    notes, runs = list[str](), Runs()
    made, _ = begun(of_search(runs), notes=notes)
    made.log_trial(Trial(0, "complete"))
    made.close(lambda trial: None)
    assert notes == ["t: https://runs/s" if ends else "t no longer logs this search: KeyError: 0"]
    assert len(runs.threads) == 1 and len(runs.trials) == 1


def test_a_search_that_fails_at_its_end_leaves_the_tracker_to_the_next_one(monkeypatch) -> None:
    def lost(*of: Any) -> None:
        raise OSError("stale file handle")

    told, notes = Told(), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(run, "find_saved", lost)
        with pytest.raises(OSError, match="stale file handle"):
            search(told, n_trials=1)
    assert len(told.trials) <= 1 and told.ends == []
    search(told, n_trials=1, notes=notes, overwrite=True)
    assert [trial.number for trial in told.trials] == [0, 0] and len(told.ends) == 1
    assert not [note for note in notes if "another search" in note]


def test_no_thread_of_a_tracker_is_left() -> None:
    for _ in range(5):
        search, _ = begun(of_process(Told()))
        search.close(lambda trial: None)
    assert not [t for t in threading.enumerate() if t.name.startswith("paceline-track-t")]
