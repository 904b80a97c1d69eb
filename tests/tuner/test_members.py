"""Repeats and folds in a search: what a trial makes of its members."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import optuna
import pandas as pd
import pytest

import paceline
import toys
from as_optuna import optuna_study
from epoch_reports import observe_reports
from paceline.executor.base import EpochReport, settled
from paceline.pack.plan import VectorizedProgram
from paceline.tuner.checkpoint.files import Snapshot
from paceline.tuner.search.members import MemberReports, member_seed
from paceline.tuner.search.running_trials import UnfinishedTrial, UnfinishedTrials
from stopping import times_out

# 53 examples in 3 folds of 17: two are left out, and both steps have a smaller last batch.
X, Y = toys.data(53)
XV, YV = toys.data(23, seed=1)
FIT: dict[str, Any] = {"batch_size": 16, "epochs": 3}
CALL: dict[str, Any] = {**FIT, "verbose": 0}
HELD_OUT: dict[str, Any] = {**CALL, "validation_data": (XV, YV)}

PLANS = pytest.mark.parametrize(
    "plan", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)]
)


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, four trials at a time."""
    return functools.partial(make, parallel_trials=4)


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    for name, values in one.items():
        # float32 over a few epochs, sums in another order: 1e-6 seen.
        np.testing.assert_allclose(values, other[name], atol=1e-5, err_msg=name)


def mean_of(histories: list[dict[str, list[float]]]) -> dict[str, Any]:
    return {name: np.mean([h[name] for h in histories], axis=0) for name in histories[0]}


# -- repeats ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_repeat_is_none(make) -> None:
    one, none = make(study="one"), make(study="none")
    one.search(X, Y, repeats=1, n_trials=3, **HELD_OUT)
    none.search(X, Y, n_trials=3, **HELD_OUT)
    for number in range(3):
        assert one.history(number) == none.history(number)
    tables = [tuner.results().drop(columns="train_seconds") for tuner in (one, none)]
    pd.testing.assert_frame_equal(*tables)
    assert "value_std" not in one.results()
    assert one.best_trial.value_std is None


@PLANS
def test_repeats_are_the_same_hparams_from_other_seeds(make, plan: str) -> None:
    tuner = make(plan=plan)
    tuner.search(X, Y, repeats=3, n_trials=2, shuffle=False, **HELD_OUT)
    for number in (1,) if plan == "vectorized" else (0, 1):
        trial = tuner.trial(number)
        seeds = [member_seed(trial.seed, repeat) for repeat in range(3)]
        assert seeds[0] == trial.seed and len(set(seeds)) == 3
        alone = []
        for seed in seeds:
            keras.utils.set_random_seed(seed)
            model = toys.dense(paceline.HyperParameters(values=trial.hparams))
            fit = model.fit(X, Y, validation_data=(XV, YV), shuffle=False, verbose=0, **FIT)
            alone.append(fit.history)
        close(tuner.history(number), mean_of(alone))
        values = np.array([history["val_accuracy"] for history in alone]).T
        np.testing.assert_allclose(trial.runs, values, atol=1e-5)


def test_value_and_spread_are_those_of_the_best_epochs_members(make) -> None:
    tuner = make()
    tuner.search(X, Y, repeats=3, n_trials=4, **HELD_OUT)
    results = tuner.results()
    assert list(results.columns[:4]) == ["value", "value_std", "dropout", "lr"]
    for number in range(4):
        trial = tuner.trial(number)
        means = np.mean(trial.runs, axis=1)
        np.testing.assert_allclose(tuner.history(number)["val_accuracy"], means)
        assert trial.value == pytest.approx(max(means))
        assert trial.best_epoch == 1 + int(np.argmax(means))
        assert results["value"][number] == trial.value
        at_best = trial.runs[trial.best_epoch - 1]
        assert results["value_std"][number] == pytest.approx(np.std(at_best))
    assert results["value_std"].max() > 0
    assert tuner.summary()["best"]["value_std"] == tuner.best_trial.value_std


@pytest.mark.slow
def test_a_study_keeps_members_and_says_when_they_change(make) -> None:
    make().search(X, Y, repeats=2, n_trials=2, **HELD_OUT)
    notes: list[str] = []
    again = make(on_note=notes.append)
    first = again.results()
    assert first["value_std"].notna().all()
    assert all(len(epoch) == 2 for epoch in again.trial(1).runs)
    again.search(X, Y, n_trials="+1", **HELD_OUT)
    assert any("new trials have no repeats" in note for note in notes)
    assert again.results()["value_std"].isna().tolist() == [False, False, True]
    (stored, *_) = optuna_study().trials
    assert stored.user_attrs["value_std"] == first["value_std"][0]


# -- the model that is kept ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "pruner", "executor"), [(2, None, "packed"), (2, "asha", "packed"), (2, None, "fit")]
)
def test_the_best_model_is_the_first_members(make, slots: int, pruner: Any, executor: str) -> None:
    """With fewer slots than members, too: then they report an epoch at different times."""
    arguments = {"parallel_trials": slots, "pruner": pruner, "executor": executor}
    repeated, folded = make(study="repeated", **arguments), make(study="folded", **arguments)
    n = 1 if executor == "fit" else 3
    repeated.search(X, Y, repeats=3, n_trials=n, **HELD_OUT)
    folded.search(X, Y, folds=3, n_trials=n, **CALL)
    validation = folded.folds[0][1]
    for tuner, x, y in ((repeated, XV, YV), (folded, X[validation], Y[validation])):
        best = tuner.best_trial
        for one in (tuner, make(study=tuner.name, **arguments)):  # held, and from the disk
            scores = one.best_model().evaluate(x, y, verbose=0, return_dict=True)
            assert scores["accuracy"] == pytest.approx(best.runs[best.best_epoch - 1][0])


# -- pruning ---------------------------------------------------------------------------------------


class Sees(optuna.pruners.BasePruner):
    """Notes what it is shown; stops nobody, or everybody."""

    def __init__(self, stops: bool = False) -> None:
        self.seen: dict[int, list[float]] = {}
        self.stops = stops

    def prune(self, study: Any, trial: Any) -> bool:
        self.seen[trial.number] = list(trial.intermediate_values.values())
        return self.stops


@PLANS
def test_pruners_see_the_mean(make, plan: str) -> None:
    pruner = Sees()
    tuner = make(plan=plan, pruner=pruner, parallel_trials=2)
    tuner.search(X, Y, repeats=3, n_trials=3, **HELD_OUT)
    for number in range(3):
        assert pruner.seen[number] == tuner.history(number)["val_accuracy"][:-1]


@PLANS
def test_nobody_trains_beyond_the_epoch_that_is_judged(make, plan: str, monkeypatch) -> None:
    reports = observe_reports(monkeypatch)
    tuner = make(plan=plan, pruner=Sees(stops=True), parallel_trials=2)
    tuner.search(X, Y, repeats=3, n_trials=3, **HELD_OUT)
    assert tuner.results()["state"].tolist() == ["pruned"] * 3
    assert [report.epoch for report in reports] == [1] * 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "members"),
    [
        ("vectorized", {"folds": 3}),
        pytest.param("sequential", {"repeats": 3}, marks=pytest.mark.slow),
        pytest.param("vectorized", {"repeats": 3}, marks=pytest.mark.slow),
        pytest.param("sequential", {"folds": 3}, marks=pytest.mark.slow),
    ],
)
def test_asha_pauses_all_members(make, plan: str, members: dict[str, int]) -> None:
    n, call = 9, (HELD_OUT if "repeats" in members else CALL) | {"epochs": 9} | members
    full, asha = make(study="full"), make(study="asha", pruner="asha", plan=plan)
    for tuner in (full, asha):
        tuner.search(X, Y, n_trials=n, **call)
    results = asha.results()
    assert set(results["state"]) == {"complete", "pruned"}
    assert set(results["epochs"]) <= {1, 3, 9}
    assert results["epochs"].sum() <= n * 9 / 2
    assert asha.summary()["n_trials"]["running"] == 0
    for number in range(n):
        history, whole = asha.history(number), full.history(number)
        close(history, {name: values[: len(history[name])] for name, values in whole.items()})


@pytest.mark.slow
def test_wilcoxon_stops_what_is_worse_in_all_folds(make) -> None:
    def build(hp: Any) -> Any:
        return toys.compiled(toys.softmax(), hp.Choice("lr", [0.05, 1e-6, 2e-6, 3e-6, 4e-6]))

    tuner = make(
        build=build, sampler="grid", pruner="wilcoxon", objective="val_loss", parallel_trials=5
    )
    tuner.search(X, Y, folds=5, **(CALL | {"epochs": 5}))
    results = tuner.results()
    assert results["state"][0] == "complete"
    pruned = results.query("state == 'pruned'")
    assert len(pruned) >= 3 and (pruned["epochs"] < 5).all()


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_loss_of_nan_in_one_member_fails_its_trial_alone(make) -> None:
    def build(hp: Any) -> Any:
        lr = hp.Choice("lr", [1e-3, 1e30, 2e-3])
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(lr), "mse")
        return model

    tuner = make(build=build, sampler="grid")
    tuner.search(X, Y.astype("float32"), folds=3, repeats=2, **CALL)
    assert tuner.results()["state"].tolist() == ["complete", "failed", "complete"]
    error = tuner.trial(1).error
    assert error is not None
    assert " of repeat " in error and ", fold " in error and "with {'lr': 1e+30}" in error


@pytest.mark.slow
def test_a_build_that_fails_for_a_later_seed_fails_the_trial(make) -> None:
    calls: list[int] = []

    def build(hp: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # the probe, trial 0 twice, trial 1 once
            raise ValueError("no luck with this seed")
        return toys.compiled(toys.softmax(), hp.Choice("lr", [0.1, 0.01, 0.001]))

    tuner = make(build=build, sampler="grid")
    tuner.search(X, Y, repeats=2, **HELD_OUT)
    states = tuner.results()["state"].tolist()
    assert sorted(states) == ["complete", "complete", "failed"]
    assert tuner.trial(states.index("failed")).error == "ValueError: no luck with this seed"


@pytest.mark.slow
def test_running_out_of_memory_loses_no_member(make, monkeypatch) -> None:
    """As XLA fails: the memory of the state it was given is gone. The others wait, and go on."""
    plenty, tight = make(study="plenty"), make(study="tight", pruner=Sees(), parallel_trials="auto")
    plenty.search(X, Y, repeats=3, n_trials=3, **HELD_OUT)
    train = VectorizedProgram.train

    def failing(self: VectorizedProgram, state: Any, *arguments: Any) -> Any:
        if self.n_slots > 2:
            for array in jax.tree.leaves(list(state)[:3]):
                array.delete()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        return train(self, state, *arguments)

    monkeypatch.setattr(VectorizedProgram, "train", failing)
    tight.search(X, Y, repeats=3, n_trials=3, **HELD_OUT)
    for number in range(3):
        close(tight.history(number), plenty.history(number))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_timeout_leaves_the_trial_for_the_next_search(make, monkeypatch, executor: str) -> None:
    with monkeypatch.context() as patch:
        reports = observe_reports(patch)
        times_out(patch, lambda: len(reports) >= 2)
        tuner = make(executor=executor, parallel_trials=2)
        tuner.search(X, Y, repeats=3, n_trials=1, timeout=1000.0, **HELD_OUT)
    assert tuner.results()["state"].tolist() == ["running"]
    assert len(reports) == 2
    again = make(executor=executor, parallel_trials=2)
    again.search(X, Y, repeats=3, n_trials=1, **HELD_OUT)
    assert again.results()["state"].tolist() == ["complete"]
    assert len(again.trial(0).runs) == 3


# -- reports of members ----------------------------------------------------------------------------


class Packs:
    """An executor that only notes."""

    def __init__(self) -> None:
        self.resumed: list[int] = []
        self.dropped: list[int] = []

    def resume(self, number: int) -> None:
        self.resumed.append(number)

    def drop(self, number: int) -> None:
        self.dropped.append(number)


class Trial:
    """A trial of three members, their executor, and what the trial reports."""

    def __init__(self, together: bool, verdict: Any = "continue") -> None:
        self.packs, self.means, self.fetched = Packs(), [], []
        self.verdict = verdict
        self.trials = UnfinishedTrials(())
        self.members = MemberReports(3, together, self.packs, Packs(), self.trials)
        self.trials.begin(2, epochs=3)  # its jobs are 6, 7, 8

    def of_trial(self, mean: EpochReport) -> Any:
        self.means.append(mean)
        return self.verdict

    def round(self, *reports: tuple[int, int]) -> list[str]:
        """Jobs and epochs that are reported together; the answers."""
        told = [
            self.members.receive(self._epoch(job, epoch), self.of_trial) for job, epoch in reports
        ]
        return [settled(answer) for answer in told]

    def _epoch(self, job: int, epoch: int) -> EpochReport:
        logs = {"loss": float(job)}
        return EpochReport(job, epoch, logs, 1.0, "p", "vectorized", lambda: self._fetch(job))

    def _fetch(self, job: int) -> Any:
        self.fetched.append(job)
        return [], []


def test_members_of_one_round_go_on_at_once() -> None:
    trial = Trial(together=True)
    assert trial.round((6, 1), (7, 1), (8, 1)) == ["continue"] * 3
    (mean,) = trial.means
    assert (mean.number, mean.epoch, mean.logs, mean.seconds) == (2, 1, {"loss": 7.0}, 3.0)
    assert trial.packs.resumed == [] and trial.fetched == []


def test_with_a_pruner_members_wait_for_each_other() -> None:
    trial = Trial(together=True)
    assert trial.round((8, 1), (7, 1)) == ["pause", "pause"]
    assert trial.means == []
    assert trial.round((6, 1)) == ["continue"]
    assert trial.packs.resumed == [7, 8]
    trial.verdict = "stop"
    trial.round((8, 2))
    trial.round((7, 2), (6, 2))
    assert [mean.epoch for mean in trial.means] == [1, 2]


def test_without_one_only_the_first_member_waits_and_its_weights_are_held() -> None:
    trial = Trial(together=False)
    assert trial.round((8, 1), (6, 1)) == ["continue", "pause"]
    assert trial.fetched == [6]
    assert trial.round((8, 2)) == ["continue"]
    assert trial.round((8, 3), (7, 1)) == ["continue", "continue"]
    assert trial.packs.resumed == [6]
    trial.means[0].weights()
    assert trial.fetched == [6]  # what was held


def test_members_of_a_trial_that_ended_stop() -> None:
    trial = Trial(together=False)
    trial.round((8, 1))
    trial.trials.forget(2)
    trial.members.end(2)
    assert trial.packs.dropped == [6, 7, 8]
    assert trial.round((8, 2), (7, 1)) == ["stop", "stop"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_member_that_ended_counts_with_its_latest_validation(interrupted: bool) -> None:
    """Every second epoch validates, and the second member ends after its third."""
    means: list[dict[str, float]] = []

    def of_trial(mean: EpochReport) -> Any:
        means.append(dict(mean.logs))
        return "continue"

    trials = UnfinishedTrials(())
    trials.begin(0, epochs=4)

    def report(reports: MemberReports, job: int, epoch: int) -> None:
        logs = {"loss": float(epoch + job)}
        if epoch % 2 == 0:
            logs["val_loss"] = float(epoch + 10 * job)
        last = epoch == (4, 3)[job]
        told = EpochReport(job, epoch, logs, 1.0, "p", "vectorized", lambda: ([], []), last=last)
        settled(reports.receive(told, of_trial))

    members = MemberReports(2, False, Packs(), Packs(), trials)
    for epoch in (1, 2, 3):
        report(members, 1, epoch)
        if interrupted:
            snapshot = Snapshot(trials.running[0]).encoded()
            snapshot.facts = json.loads(json.dumps(snapshot.facts))
            trials.running[0] = snapshot.decoded(UnfinishedTrial).facts
    for epoch in (1, 2, 3, 4):
        report(members, 0, epoch)
    assert [mean.get("val_loss") for mean in means] == [None, 7.0, None, 8.0]


def test_a_paused_trials_members_come_back_the_first_one_last() -> None:
    trial = Trial(together=True, verdict="pause")
    assert trial.round((7, 1)) == ["pause"]
    assert trial.round((6, 1), (8, 1)) == ["pause", "pause"]
    assert trial.packs.resumed == []
    trial.members.resume(2)
    assert trial.packs.resumed == [6, 7, 8]  # each before those resumed earlier
    trial.verdict = "continue"
    assert trial.round((6, 2), (7, 2), (8, 2)) == ["continue"] * 3


@pytest.mark.slow
def test_repeats_alike_do_not_count_as_trials_that_show_what_differs(make) -> None:
    def build(hp):
        hp.Choice("unused", [1, 2, 3])
        return toys.dense(hp)

    tuner = make(build=build)
    tuner.search(X, Y, repeats=3, n_trials=4, **HELD_OUT)
    counts = tuner.summary()["programs"]
    assert counts["compiled"] + counts["from_cache"] == 2, "train and test, never widened"
