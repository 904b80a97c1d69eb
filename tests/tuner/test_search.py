"""The loop between study and executors: what fails, what ends it, and what it leaves behind."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from as_optuna import optuna_study
from epoch_reports import observe_reports
from paceline.tuner.search import progress as progress_module
from paceline.tuner.search import timeouts
from streams import Batches, alone, same

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
CALL: dict[str, Any] = {"validation_data": (XV, YV), "epochs": 2, "batch_size": 16}


class Notes(list[str]):
    """What a search said."""

    def say(self, text: str) -> bool:
        return any(text in note for note in self)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, four trials at a time."""
    return functools.partial(make, parallel_trials=4)


def states(tuner: paceline.Tuner) -> list[str]:
    return tuner.results()["state"].tolist()


# -- one search, any slots and plan ----------------------------------------------------------------


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Trials and their histories, by plan and slots; trained when first asked for."""

    @functools.cache
    def found(plan: str, slots: Any) -> tuple[list[Any], list[Any]]:
        tuner = paceline.Tuner(
            toys.dense,
            directory=tmp_path_factory.mktemp("runs"),
            sampler="random",
            seed=3,
            parallel_trials=slots,
            plan=plan,
            on_note=lambda text: None,
        )
        tuner.search(X, Y, n_trials=5, **CALL)
        assert set(tuner.results()["plan"]) == {plan}
        trials = [(trial.hparams, trial.seed) for trial in map(tuner.trial, range(5))]
        return trials, [tuner.history(number) for number in range(5)]

    return found


@pytest.mark.parametrize(
    "other",
    [
        ("vectorized", 2),
        pytest.param(("vectorized", 1), marks=pytest.mark.slow),
        pytest.param(("vectorized", 8), marks=pytest.mark.slow),
    ],
)
def test_slots_and_plan_change_nothing_but_the_order_of_sums(histories, other):
    trials, expected = histories("sequential", "auto")
    others, found = histories(*other)
    assert others == trials
    for one, two in zip(expected, found, strict=True):
        assert list(one) == list(two)
        for name in one:
            # 2e-7 measured after 8 Adam steps; accuracy may differ by one of 23 examples.
            atol = 0.05 if "accuracy" in name else 1e-5
            np.testing.assert_allclose(one[name], two[name], atol=atol, err_msg=name)


class LearnsBadly(optuna.samplers.RandomSampler):
    """Raises when it is told how a trial ended."""

    def after_trial(self, *_: Any) -> None:
        raise ZeroDivisionError("in after_trial")


@pytest.mark.parametrize("executor", ["fit", "packed"])
def test_a_sampler_that_fails_at_a_trials_end_is_an_error_of_the_search(
    make, notes, executor
) -> None:
    """The user learns of the sampler; no trial is blamed, and no other error covers it up."""
    tuner = make(executor=executor, sampler=LearnsBadly(seed=0))
    blamed = "LearnsBadly failed: ZeroDivisionError: in after_trial"
    with pytest.raises(paceline.SamplerError, match=blamed):
        tuner.search(X, Y, **CALL, n_trials=2)
    assert not notes.say("failed")


# -- trials that fail ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_default_that_does_not_build_is_one_failure(make):
    def build(hp):
        if hp.Choice("units", [1, 2, 3]) == 1:
            raise ValueError("one is too few")
        return toys.softmax()

    tuner = make(build, sampler="grid")
    tuner.search(X, Y, **CALL)
    assert states(tuner) == ["failed", "complete", "complete"]


def test_five_failing_builds_in_a_row_end_the_search(make):
    def build(hp):
        if hp.Int("units", 1, 1000) > 1:  # the default works
            raise ValueError("no room for it")
        return toys.softmax()

    tuner = make(build)
    with pytest.raises(
        paceline.BuildError, match="5 trials failed in a row.*no room for it"
    ) as error:
        tuner.search(X, Y, n_trials=50, **CALL)
    assert isinstance(error.value.__cause__, ValueError)
    assert states(tuner) == ["failed"] * 5


def test_trials_under_way_end_before_failing_builds_end_the_search(make, notes):
    calls = itertools.count()

    def build(hp):
        hp.Int("units", 1, 10**6)
        if next(calls) > 3:  # the probe, and three trials
            raise MemoryError("no more")
        return toys.softmax()

    tuner = make(build)
    with pytest.raises(paceline.BuildError, match="5 trials failed in a row.*MemoryError: no more"):
        tuner.search(X, Y, n_trials=50, **CALL)
    assert states(tuner) == ["complete"] * 3 + ["failed"] * 5
    assert tuner.best_trial.number < 3
    assert notes.say("cannot be saved: build(hp) failed this time: MemoryError: no more")


def test_a_build_that_always_fails_writes_nothing(make, fresh_folder):
    def build(hp):
        raise RuntimeError("no such layer")

    with pytest.raises(paceline.BuildError, match="RuntimeError: no such layer"):
        make(build).search(X, Y, n_trials=3, **CALL)
    assert not list(fresh_folder.iterdir())


def test_a_build_that_begins_to_fail_before_any_hyperparameter_gives_its_cause(make):
    calls = itertools.count()

    def build(hp):
        if next(calls) > 0:
            raise FileNotFoundError("weights.h5")
        return toys.softmax()

    with pytest.raises(paceline.BuildError, match=r"FileNotFoundError: weights\.h5"):
        make(build).search(X, Y, n_trials=3, **CALL)


def diverging(hp: Any) -> Any:
    """Of 8 learning rates, the ``bad`` ones give NaN at once."""
    lr = hp.Choice("lr", [1e-3, 2e-3, 3e-3, 1e30, 2e30, 3e30, 4e30, 5e30])
    model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lr), "mse")
    return model


def test_a_loss_of_nan_fails_that_trial_alone(make, notes):
    tuner = make(diverging, sampler="grid", parallel_trials=8)
    tuner.search(X, Y, **CALL)
    # Five of a pack of eight fail, and in a row: the three that train well are not lost.
    assert states(tuner) == ["complete"] * 3 + ["failed"] * 5
    error = tuner.trial(3).error
    assert error is not None
    assert "in epoch 1, with {'lr': 1e+30}" in error
    assert error.startswith(("loss is nan", "loss is inf", "val_loss is"))
    assert notes.say(f"trial 3 failed: {error}")
    assert tuner.trial(3).epochs == 1
    assert tuner.best_trial.number < 3


def test_the_best_trial_may_fail_after_its_best_epoch(make):
    """The best complete trial's weights are still there."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if self.model.optimizer.learning_rate > 0.04:
                logs["val_loss"] = 0.0 if epoch == 0 else float("nan")

    def build(hp):
        model = toys.softmax()
        model.optimizer.learning_rate = hp.Choice("lr", [0.01, 0.05])
        return model

    tuner = make(build, objective="val_loss", sampler="grid")
    tuner.search(X, Y, callbacks=[Fails()], **CALL)
    assert states(tuner) == ["complete", "failed"]
    assert tuner.best_trial.number == 0
    loss = tuner.best_model().evaluate(XV, YV, verbose=0)[0]
    assert loss == pytest.approx(tuner.best_trial.value, abs=1e-5)


# -- interruptions ---------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_study_that_goes_on(make, notes, monkeypatch):
    def interrupt(report):
        if len(reports) >= 8:
            raise KeyboardInterrupt

    tuner = make(parallel_trials=2)
    with monkeypatch.context() as patch:
        reports = observe_reports(patch, after=interrupt)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, n_trials=6, **(CALL | {"epochs": 3}))
    assert notes.say("interrupted with")
    done, left = states(tuner).count("complete"), states(tuner).count("running")
    assert done >= 2
    assert left >= 1
    best = tuner.best_trial
    scores = tuner.best_model().evaluate(XV, YV, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(best.value, abs=1e-5)
    running = [trial.hparams for trial in tuner._require_study().trials if trial.state == "running"]

    again = make(parallel_trials=2)
    assert again.trial(best.number) == best
    again.search(X, Y, n_trials=6, **(CALL | {"epochs": 3}))
    assert states(again) == ["complete"] * 6
    assert again.trial(best.number).history == best.history
    tried = [trial.hparams for trial in again._require_study().trials]
    assert all(hparams in tried for hparams in running)


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_progress_may_stop_a_search_that_the_next_one_goes_on_with(
    make, notes, executor, monkeypatch
):
    monkeypatch.setattr(progress_module, "BETWEEN_LOOKS", 0.0)
    shown = []

    def stop(progress):
        shown.append(progress.trial_epochs)
        return progress.trial_epochs < 2

    tuner = make(executor=executor, parallel_trials=2, on_progress=stop)
    tuner.search(X, Y, n_trials=3, **(CALL | {"epochs": 40}))
    assert notes.say("stopped by progress with")
    assert "running" in states(tuner)
    assert max(shown) < 80
    again = make(executor=executor, parallel_trials=2)
    again.search(X, Y, n_trials=3, **(CALL | {"epochs": 40}))
    assert states(again).count("complete") == 3


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_timeout_leaves_trials_for_the_next_search(make, notes, executor, monkeypatch):
    """The clock of the search jumps by an hour once an epoch is reported."""

    class Clock:
        late = 0.0

        @classmethod
        def perf_counter(cls) -> float:
            return time.perf_counter() + cls.late

    def build(hp):
        hp.Float("x", 0, 1)
        return toys.softmax()

    def jump(report):
        Clock.late = 3600.0

    tuner = make(build, executor=executor, parallel_trials=2, pruner="none")
    with monkeypatch.context() as patches:
        patches.setattr(timeouts, "time", Clock)
        observe_reports(patches, before=jump)
        tuner.search(X, Y, n_trials=3, timeout=600, **{**CALL, "epochs": 60})
    assert notes.say("stopped by the timeout with")
    assert "running" in states(tuner)
    again = make(build, executor=executor, parallel_trials=2, pruner="none")
    again.search(X, Y, n_trials=3, **{**CALL, "epochs": 60})
    assert states(again).count("complete") == 3
    assert "running" not in states(again)


@pytest.mark.slow
def test_a_timeout_alone_may_bound_a_search(make):
    def build(hp):
        hp.Boolean("x")
        return toys.softmax()

    tuner = make(build)
    tuner.search(X, Y, timeout=60, **CALL)  # the space has two configurations
    assert states(tuner) == ["complete"] * 2


# -- the space and its end -------------------------------------------------------------------------


def test_a_grid_ends_by_itself_and_says_so(make, notes):
    def build(hp):
        if hp.Choice("kind", ["plain", "scaled"]) == "scaled":
            hp.Choice("scale", [1, 2])
        return toys.softmax()

    tuner = make(build, sampler="grid")
    tuner.search(X, Y, **CALL)
    assert [tuner.trial(n).hparams for n in range(3)] == [
        {"kind": "plain"},
        {"kind": "scaled", "scale": 1},
        {"kind": "scaled", "scale": 2},
    ]
    assert notes.say("every configuration of the space has been tried")
    tuner.search(X, Y, **CALL)
    assert len(tuner.results()) == 3


def test_an_adaptive_sampler_has_few_trials_open(make):
    open_trials = []

    def build(hp):
        hp.Float("x", 0, 1)
        return toys.softmax()

    tuner = make(
        build,
        sampler="tpe",
        parallel_trials=16,
        on_progress=lambda p: open_trials.append(p.n_running),
    )
    tuner.search(X, Y, n_trials=12, **CALL)
    assert max(open_trials) <= 4
    assert len(tuner.results()) == 12


def test_enqueued_trials_come_first_and_wrong_ones_are_errors(make):
    tuner = make()
    tuner.enqueue({"lr": 0.02, "dropout": 0.2})
    tuner.enqueue({"lr": np.float64(0.03)})
    tuner.search(X, Y, n_trials=2, **CALL)
    assert tuner.trial(0).hparams == {"dropout": 0.2, "lr": 0.02}
    assert tuner.trial(1).hparams["lr"] == 0.03
    tuner.enqueue({"rate": 0.1})
    with pytest.raises(
        paceline.SpaceError, match="does not declare the hyperparameter 'rate'.*dropout, lr"
    ):
        tuner.search(X, Y, n_trials="+1", **CALL)
    tuner.enqueue({"lr": 7.0})
    with pytest.raises(paceline.SpaceError, match=r"lr.*7\.0"):  # the one before was dropped
        tuner.search(X, Y, n_trials="+1", **CALL)
    tuner.search(X, Y, n_trials="+1", **CALL)
    assert states(tuner) == ["complete"] * 3


# -- trials in Keras' own fit ----------------------------------------------------------------------


def test_trials_that_cannot_be_packed_run_in_fit_beside_the_others(make, notes):
    class OwnFit(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    def build(hp):
        kind = OwnFit if hp.Choice("units", [1, 2, 3]) % 2 else keras.Sequential
        head = keras.layers.Dense(toys.CLASSES, activation="softmax")
        return toys.compiled(kind([keras.Input((toys.FEATURES,)), head]))

    tuner = make(build, sampler="grid")
    tuner.search(X, Y, **CALL)
    assert tuner.results()["plan"].tolist() == ["fit", "vectorized", "fit"]
    assert states(tuner) == ["complete"] * 3
    assert [note for note in notes if "own fit" in note] == [
        "trial 0 and its like run in Keras' own fit, one at a time: its class OwnFit has its own "
        "fit()"
    ]
    assert tuner.summary()["plans"] == ["fit", "vectorized"]
    (stored,) = optuna_study().trials[:1]
    assert stored.user_attrs["fallback_reason"] == "its class OwnFit has its own fit()"


class Uneven(Batches):
    """Every batch has another size."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return x[: 16 - index], y[: 16 - index]


def generator():
    while True:
        for size in (16, 12, 8):
            yield X[:size], Y[:size]


@pytest.mark.parametrize(
    "kind",
    ["PyDataset", *(pytest.param(k, marks=pytest.mark.slow) for k in ("generator", "validation"))],
)
def test_data_of_batches_that_differ_goes_to_fit_and_it_is_said(make, notes, kind):
    call: dict[str, Any] = {"n_trials": 1, "epochs": 2, "validation_data": (XV, YV)}
    if kind == "generator":
        call |= {"x": generator(), "steps_per_epoch": 3}
    elif kind == "PyDataset":
        call |= {"x": Uneven(), "validation_data": Batches(XV, YV)}
    else:
        call |= {"x": X, "y": Y, "batch_size": 16, "validation_data": Uneven()}
    tuner = make()
    tuner.search(**call)
    assert states(tuner) == ["complete"]
    assert tuner.results()["plan"].tolist() == ["fit"]
    assert notes.say("run in Keras' own fit, one at a time:")
    assert notes.say("sizes, but packs need arrays, or equal batches of arrays")
    # Names of the metrics and shapes come from the first batch.
    assert tuner._require_study().metadata.meta["objective"] == "val_accuracy"
    x = (Uneven(),) if kind == "validation" else (XV, YV)
    value = make().best_model().evaluate(*x, verbose=0, return_dict=True)["accuracy"]
    assert value == pytest.approx(tuner.best_trial.value, abs=1e-5)


@pytest.mark.slow
def test_callbacks_in_fit_each_trial_with_its_own(make, notes):
    class Counts(keras.callbacks.Callback):
        seen: list[int] = []  # noqa: RUF012 - of the class, so that copies share it

        def __init__(self):
            super().__init__()
            self.epochs = 0

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1
            Counts.seen.append(self.epochs)
            if self.epochs == 2 and len(Counts.seen) == 2:
                self.model.stop_training = True

    tuner = make(executor="fit")
    tuner.search(X, Y, n_trials=2, callbacks=Counts(), **(CALL | {"epochs": 3}))
    assert Counts.seen == [1, 2, 1, 2, 3]
    assert tuner.results()["epochs"].tolist() == [2, 3]
    assert states(tuner) == ["complete"] * 2
    assert notes.say("own fit, one at a time: executor='fit'")


def test_what_changes_nothing_keeps_trials_in_packs(make):
    tuner = make()
    tuner.search(X, Y, n_trials=1, callbacks=[], initial_epoch=0, steps_per_epoch=None, **CALL)
    assert tuner.results()["plan"].tolist() == ["vectorized"]


def test_validation_need_not_come_every_epoch(make):
    tuner = make()
    tuner.search(X, Y, n_trials=1, validation_freq=2, **(CALL | {"epochs": 3}))
    history = tuner.history(0)
    assert np.isnan(history["val_accuracy"][0])
    assert tuner.best_trial.value == history["val_accuracy"][1]
    assert tuner.best_trial.best_epoch == 2


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_weights_and_splits_are_those_of_keras(make, executor):
    weight = np.linspace(0.5, 1.5, len(X))
    tuner = make(executor=executor)
    tuner.search(
        X, Y, validation_split=0.3, sample_weight=weight, epochs=2, n_trials=1, shuffle=False
    )
    classes = {0: 1.0, 1: 3.0}
    other = paceline.Tuner(
        toys.dense, study="t", sampler="random", executor=executor, on_note=print
    )
    other.search(
        X, Y, validation_split=0.3, class_weight=classes, epochs=2, n_trials=1, shuffle=False
    )
    for one, arguments in ((tuner, {"sample_weight": weight}), (other, {"class_weight": classes})):
        call = {"validation_split": 0.3, "epochs": 2, "shuffle": False, **arguments}
        same(one, 0, alone(one.trial(0), toys.dense, X, Y, **call))
