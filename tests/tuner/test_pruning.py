"""Pruning in packs: freed slots are refilled, paused trials come back, histories are unbroken."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from marks import slow_where
from paceline.executor import pack_executor
from paceline.executor.state.paused import PausedStates
from paceline.executor.training import planner
from paceline.executor.training.slots import SlotAllocator
from paceline.study.ask_tell import TrialUpdates
from paceline.tuner.search.checkpointer import SearchCheckpointer
from paceline.tuner.search.events import PrunerVerdicts
from paceline.tuner.search.running_trials import UnfinishedTrials
from paceline.tuner.search.timeouts import SearchTimeout
from stopping import times_out

X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 9,
    "batch_size": 16,
    "verbose": 0,
}
N = 12


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, four trials at a time."""
    return functools.partial(make, parallel_trials=4)


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> paceline.Tuner:
    """The same trials, all of them to their end."""
    folder = tmp_path_factory.mktemp("full")
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        sampler="random",
        parallel_trials=4,
        directory=folder,
        on_note=lambda text: None,
    )
    tuner.search(X, Y, n_trials=N, **CALL)
    return tuner


def same_so_far(one: paceline.Tuner, full: paceline.Tuner) -> None:
    """Every trial's history is the beginning of its whole one."""
    for row in one.results().itertuples():
        whole = full.history(row.number)
        for name, values in one.history(row.number).items():
            assert len(values) == row.epochs
            # The same program, in other slots: 0 measured; what is beside a trial may change how
            # XLA sums on other machines.
            np.testing.assert_allclose(values, whole[name][: row.epochs], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("plan", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)])
def test_asha(make, full, plan: str) -> None:
    tuner = make(pruner="asha", plan=plan)
    tuner.search(X, Y, n_trials=N, **CALL)
    results = tuner.results()
    assert set(results["state"]) == {"complete", "pruned"}
    assert set(results["epochs"]) <= {1, 3, 9}
    assert set(results.query("state == 'complete'")["epochs"]) == {9}
    assert results["epochs"].sum() <= N * 9 / 2
    # All that belong above the first rung went beyond it.
    first = sorted(range(N), key=lambda n: -full.history(n)["val_accuracy"][0])
    assert all(tuner.trial(n).epochs > 1 for n in first[: N // 3])
    same_so_far(tuner, full)
    assert tuner.summary()["n_trials"]["pruned"] == (results["state"] == "pruned").sum()
    assert 0.3 < tuner.summary()["slots_busy"] <= 1.0


def test_paused_trials_come_back_from_the_disk(make, full, monkeypatch) -> None:
    made = []

    def parking() -> PausedStates:
        made.append(PausedStates(limit=0))
        return made[-1]

    monkeypatch.setattr(pack_executor, "PausedStates", parking)
    written, write = [], PausedStates._write

    def counted(self: PausedStates, parked: Any) -> None:
        written.append(parked.trial.number)
        write(self, parked)

    monkeypatch.setattr(PausedStates, "_write", counted)
    tuner = make(pruner=paceline.ASHA(min_epochs=1, reduction_factor=2))
    tuner.search(X, Y, n_trials=N, **CALL)
    assert len(written) > N / 2
    assert len(made[0]) == 0
    assert (tuner.results()["epochs"] > 1).sum() > N / 3
    same_so_far(tuner, full)


def test_what_optuna_sees_of_paused_trials(make, monkeypatch) -> None:
    states, in_storage, pause = set(), set(), TrialUpdates.pause
    storage = optuna.storages.InMemoryStorage()

    def look(self: TrialUpdates, number: int) -> None:
        pause(self, number)
        self._writer.flush()
        states.add(self._trials.by_number(number).state)
        stored = optuna.load_study(study_name="s", storage=storage).trials[number]
        in_storage.add((stored.state.name, stored.user_attrs.get("paused")))

    monkeypatch.setattr(TrialUpdates, "pause", look)
    tuner = make(pruner="asha", storage=storage)
    tuner.search(X, Y, n_trials=N, **CALL)
    assert states == {"paused"}
    assert in_storage == {("RUNNING", True)}
    study = optuna.load_study(study_name="s", storage=storage)
    assert {t.state.name for t in study.trials} == {"COMPLETE", "PRUNED"}
    for trial in study.trials:
        assert len(trial.intermediate_values) == tuner.trial(trial.number).epochs


def test_epochs_that_optuna_has_stored_are_pruned_by(make) -> None:
    storage = optuna.storages.InMemoryStorage()
    theirs = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    for _ in range(5):
        better_than_any = dict.fromkeys(range(1, 9), 1.5)
        theirs.add_trial(optuna.trial.create_trial(value=1.5, intermediate_values=better_than_any))
    tuner = make(pruner="median", storage=storage)
    tuner.search(X, Y, n_trials="+4", **CALL)
    ours = tuner.results().query("number > 4")
    assert ours["state"].tolist() == ["pruned"] * 4
    assert ours["epochs"].tolist() == [1] * 4


@pytest.mark.parametrize(
    "pruner",
    [pytest.param("percentile:60", marks=pytest.mark.slow), "median", "hyperband", "threshold:0.5"],
)
def test_pruned_trials_cost_nothing_more(make, full, pruner: str) -> None:
    tuner = make(pruner=pruner)
    tuner.search(X, Y, n_trials=N, **CALL)
    results = tuner.results()
    assert set(results["state"]) == {"complete", "pruned"}
    pruned = results.query("state == 'pruned'")
    assert (pruned["epochs"] < 9).all() and pruned["value"].notna().all()
    same_so_far(tuner, full)
    assert tuner.best_trial.state == "complete"
    tuner.best_model()


def test_an_object_of_optunas(make) -> None:
    tuner = make(pruner=optuna.pruners.ThresholdPruner(lower=2.0))
    tuner.search(X, Y, n_trials=3, **CALL)
    assert tuner.results()["state"].tolist() == ["pruned"] * 3
    assert tuner.results()["epochs"].tolist() == [1] * 3


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["asha", "threshold:2"])
def test_in_fit_what_would_pause_is_pruned(make, pruner: str) -> None:
    tuner = make(pruner=pruner, executor="fit")
    tuner.search(X, Y, n_trials=4, **CALL)
    results = tuner.results()
    assert "pruned" in set(results["state"])
    assert (results.query("state == 'pruned'")["epochs"] <= 3).all()


def test_a_study_that_goes_on_knows_its_rungs(make) -> None:
    make(pruner="asha").search(X, Y, n_trials=6, **CALL)
    tuner = make(pruner="asha")
    tuner.search(X, Y, n_trials="+6", **CALL)
    results = tuner.results()
    assert len(results) == 12
    assert results["epochs"][6:].sum() < 6 * 9 / 2


def test_asha_with_an_adaptive_sampler_asks_to_the_end(make) -> None:
    tuner = make(pruner="asha", sampler="tpe")
    tuner.search(X, Y, n_trials=N, **CALL)
    assert len(tuner.results()) == N
    assert not {"running", "paused"} & set(tuner.results()["state"])


@pytest.mark.slow
def test_after_a_timeout_paused_trials_wait_for_the_next_search(make, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) > 20)
        tuner = make(pruner="asha")
        tuner.search(X, Y, n_trials=40, timeout=1000.0, **CALL)
    assert "paused" in set(tuner.results()["state"])
    tuner.search(X, Y, n_trials=40, **CALL)
    assert set(tuner.results()["state"]) == {"complete", "pruned"}
    assert len(tuner.results()) == 40


@pytest.mark.slow
def test_trials_of_a_model_that_has_changed_reach_their_rungs_again(make) -> None:
    """What the pruner knew of them was of their first start: none may wait or be ranked twice."""

    def one_layer(hp: Any) -> Any:
        hp.Float("dropout", 0.1, 0.5)  # declared as in ``toys.dense``
        return toys.softmax_at(hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    with pytest.MonkeyPatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) > 20)
        make(pruner="asha").search(X, Y, n_trials=40, timeout=1000.0, **CALL)
    again = make(pruner="asha", build=one_layer)
    again.search(X, Y, n_trials=40, **CALL)
    results = again.results()
    assert set(results["state"]) == {"complete", "pruned"}
    assert len(results) == 40
    assert set(results["epochs"]) <= {1, 3, 9}
    assert all(len(again.history(row.number)["loss"]) == row.epochs for row in results.itertuples())


@pytest.mark.parametrize("n_trials", slow_where([1, 2, 7], lambda n: n > 1))
def test_few_trials_end_with_a_complete_one(make, n_trials: int) -> None:
    tuner = make(pruner="asha")
    tuner.search(X, Y, n_trials=n_trials, **{**CALL, "epochs": 28})
    results = tuner.results()
    assert "complete" in set(results["state"]) and len(results) == n_trials
    tuner.best_model()


@pytest.mark.slow
def test_few_trials_in_fit_end_with_a_complete_one(make) -> None:
    tuner = make(pruner="asha", executor="fit")
    tuner.search(X, Y, n_trials=2, **CALL)
    assert "complete" in set(tuner.results()["state"])


@pytest.mark.slow
def test_trials_too_short_for_a_rung_complete(make) -> None:
    tuner = make(pruner="asha:3")
    call = {**CALL, "epochs": lambda hp: hp.Choice("epochs", [2, 9])}
    tuner.search(X, Y, n_trials=8, **call)
    short = tuner.results().query("epochs == 2")
    assert len(short) and set(short["state"]) == {"complete"}


@pytest.mark.slow
def test_a_study_with_shorter_trials_goes_on(make) -> None:
    make().search(X, Y, n_trials=3, **{**CALL, "epochs": 2})
    tuner = make(pruner="asha:3")
    tuner.search(X, Y, n_trials="+6", **CALL)
    assert len(tuner.results()) == 9


def test_one_failed_trial_among_pruned_ones_is_not_all_of_them(make) -> None:
    def build(hp: Any) -> Any:
        rate = hp.Choice("lr", [1e-3, 1e-2, 1e30])
        if rate > 1:
            raise ValueError("too fast")
        return toys.compiled(toys.softmax(), rate)

    tuner = make(build=build, pruner=optuna.pruners.ThresholdPruner(lower=2.0))
    tuner.enqueue({"lr": 1e30})
    tuner.search(X, Y, n_trials=9, **CALL)  # the space has three configurations
    states = sorted(tuner.results()["state"])
    assert states == ["failed", "pruned", "pruned"]


@pytest.mark.slow
def test_the_last_of_a_ladder_share_a_pack(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "cores", lambda: 2)
    monkeypatch.setitem(planner.AUTO_SLOTS, "cpu", 8)
    tuner = make(pruner="asha", parallel_trials="auto")
    tuner.search(X, Y, n_trials=64, **(CALL | {"epochs": 27}))
    # Two packs of 8, and few trials above the second rung while others still wait paused: 0.60 of
    # the slots are busy; 0.41 where each pack keeps its own to the end.
    assert tuner.summary()["slots_busy"] > 0.5


def test_asha_refuses_rungs_that_are_not_validated(make) -> None:
    """It would never see a value there, and stop nobody."""
    with pytest.raises(paceline.UsageError, match="after epoch 1, which validation_freq=2"):
        make(pruner="asha").search(X, Y, n_trials=3, validation_freq=2, **CALL)
    trained = make(study="trained", pruner="asha:3:3", objective="loss")
    trained.search(X, Y, n_trials=6, validation_freq=2, **CALL)
    assert (trained.results()["state"] == "pruned").any()


def test_leaders_go_on_although_trials_wait_for_their_first_epoch() -> None:
    trials, resumed = UnfinishedTrials([]), list[int]()
    for number in range(6):
        trials.begin(number, 9)
    for number in (0, 1, 2):
        trials.running[number].epoch = 3
    trials.pause(0)
    trials.pause(1)
    leaders = iter([1, 0, None])
    context: Any = SimpleNamespace(
        pruner=SimpleNamespace(leader=lambda: next(leaders)),
        study=SimpleNamespace(updates=SimpleNamespace(unpause=lambda number: None)),
        trials=trials,
        members=SimpleNamespace(resume=resumed.append),
    )
    verdicts = PrunerVerdicts(context, events=None)  # type: ignore[arg-type]
    verdicts.resume_leaders(2)  # 2 trains, 3 to 5 wait
    assert resumed == [1]
    verdicts.resume_leaders(2)
    assert resumed == [1]
    verdicts.resume_leaders(9)  # more than there are
    assert resumed == [1, 0]
    assert sorted(trials.running) == list(range(6))


def test_in_the_last_part_of_the_time_the_leaders_go_on_and_no_trial_begins(
    make, full, monkeypatch
) -> None:
    monkeypatch.setattr(SearchTimeout, "closing", property(lambda self: len(epochs) >= 12))
    epochs = observe_reports(monkeypatch)
    times_out(monkeypatch, lambda: len(epochs) >= 60)
    saved, save = [], SearchCheckpointer.save
    monkeypatch.setattr(
        SearchCheckpointer, "save", lambda self: (saved.append(len(epochs)), save(self))
    )
    first, turn = [], SlotAllocator.groups_in_turn
    monkeypatch.setattr(
        SlotAllocator,
        "groups_in_turn",
        lambda self, active, now, turn_of: (
            first.append((len(epochs) >= 12, turn_of(SimpleNamespace(epoch=0, number=0)))),
            turn(self, active, now, turn_of),
        )[1],
    )
    tuner = make(pruner="asha", parallel_trials=2)
    tuner.search(X, Y, timeout=1000.0, **CALL)
    # Trials without an epoch come last, from then on.
    assert {(end, after) for end, (after, _) in first} == {(False, False), (True, True)}
    # Once as that part begins: little is left to write at the end.
    assert [n for n in saved if 12 <= n < 60] == saved[1:-1]
    assert len(saved) == 3
    results = tuner.results()
    assert len(results) <= 12
    # With the same rungs and no such end, one trial in nine is complete.
    complete = results.query("state == 'complete'")["number"].tolist()
    assert len(complete) >= 3
    same_so_far(tuner, full)
    # Of the trials that were there, those with the best first epochs have gone on.
    began = sorted(results["number"], key=lambda n: -full.history(n)["val_accuracy"][0])
    assert set(began[:2]) <= set(complete)
