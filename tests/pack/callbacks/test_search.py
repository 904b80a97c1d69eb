"""Callbacks in a whole search: whose they are, where they write, what becomes of the trial."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from marks import slow_where
from paceline.errors import UsageError
from paceline.executor.local import LocalExecutor
from paceline.pack.callbacks.packable import why_not_packed
from paceline.pack.callbacks.per_trial import CallbackFactory, StudyPaths
from paceline.pack.callbacks.state import CallbackState, attributes_of, callback_state, resumed
from paceline.tuner.checkpoint.files import CheckpointManager
from stopping import by_epochs
from streams import alone

callbacks = keras.callbacks
X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "n_trials": 4}
XV, YV = CALL["validation_data"]


def columns(tuner: paceline.Tuner, *names: str) -> list[Any]:
    frame = tuner.results()
    return [frame[name].tolist() for name in names]


class StopsAt(callbacks.Callback):
    """Stops the first trials after so many epochs."""

    def __init__(self, *epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = float(np.asarray(self.model.optimizer.learning_rate))
        if epoch + 1 in self.epochs:
            self.model.stop_training = True


# -- what becomes of the trial ---------------------------------------------------------------------


def test_a_trial_that_is_stopped_early_is_complete_and_its_slot_goes_on(make) -> None:
    tuner = make()
    tuner.search(X, Y, **CALL, callbacks=StopsAt(2))
    assert columns(tuner, "state", "epochs", "plan") == [
        ["complete"] * 4,
        [2] * 4,
        ["vectorized"] * 4,
    ]
    assert tuner.history(3)["rate"] == [pytest.approx(tuner.trial(3).hparams["lr"])] * 2
    assert tuner.summary()["slots_busy"] == 1.0
    value = tuner.best_model().evaluate(XV, YV, verbose=0, return_dict=True)["accuracy"]
    assert value == pytest.approx(tuner.best_trial.value, abs=1e-5)


HOOKS = ["train_begin", "epoch_begin", "epoch_end", "train_end"]


@pytest.mark.parametrize(
    ("hook", "executor"),
    [
        *slow_where([(hook, "packed") for hook in HOOKS], lambda case: case[0] != "epoch_end"),
        *slow_where([(hook, "fit") for hook in HOOKS], bool),
    ],
)
def test_a_callback_that_raises_fails_its_trial_only(make, notes, hook, executor) -> None:
    class Raises(callbacks.Callback):
        count = [0]  # noqa: RUF012 - of all copies

        def on_train_begin(self, logs: Any = None) -> None:
            self.number = self.count[0]
            self.count[0] += 1
            self.maybe("train_begin")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.maybe("epoch_begin", epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.maybe("epoch_end", epoch)

        def on_train_end(self, logs: Any = None) -> None:
            self.maybe("train_end")

        def maybe(self, where: str, epoch: int = 1) -> None:
            if self.number == 1 and where == hook and epoch == 1:
                raise ValueError("no more")

    tuner = make(executor=executor)
    tuner.search(X, Y, **(CALL | {"epochs": 2, "n_trials": 3}), callbacks=Raises())
    assert columns(tuner, "state") == [["complete", "failed", "complete"]]
    assert tuner.trial(1).error == "ValueError: no more"
    assert len([note for note in notes if "trial 1 failed: ValueError: no more" in note]) == 1


def test_what_raises_in_all_trials_ends_the_search(make) -> None:
    def fail(epoch: int, logs: Any) -> None:
        raise ValueError("always")

    with pytest.raises(paceline.BuildError, match="failed in a row; the last one: .*always"):
        make().search(
            X, Y, **(CALL | {"n_trials": 9}), callbacks=callbacks.LambdaCallback(on_epoch_end=fail)
        )


def test_a_pruned_trial_ends_its_callbacks_and_a_paused_one_keeps_them(make) -> None:
    class Counts(callbacks.Callback):
        ended: list[int] = []  # noqa: RUF012 - of all copies
        epochs = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs += 1
            assert self.epochs == epoch + 1, "a trial that was paused has lost its callbacks"
            rate = self.model.optimizer.learning_rate
            rate.assign(rate * 0.5)
            logs["rate"] = float(np.asarray(rate))

        def on_train_end(self, logs: Any = None) -> None:
            self.ended.append(self.epochs)

    tuner = make(pruner=paceline.ASHA(min_epochs=1, reduction_factor=2))
    tuner.search(X, Y, **(CALL | {"n_trials": 6}), callbacks=Counts())
    states, epochs = columns(tuner, "state", "epochs")
    assert {"complete", "pruned"} == set(states)
    assert any(1 < n < 6 for n in epochs), "no trial was promoted and then pruned"
    # One that is given up while it waits has no slot to end in.
    assert set(Counts.ended) <= set(epochs) and 6 in Counts.ended
    for number, n in enumerate(epochs):
        rates = tuner.trial(number).hparams["lr"] * 0.5 ** np.arange(1, n + 1)
        np.testing.assert_allclose(tuner.history(number)["rate"], rates, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["packed", "fit"])
def test_members_have_their_own_and_one_that_stops_counts_with_its_last_epoch(
    make, executor
) -> None:
    class Stops(callbacks.Callback):
        """The first member stops after 2 epochs, the second after 4, the third never."""

        made = [0]  # noqa: RUF012 - of all copies

        def on_train_begin(self, logs: Any = None) -> None:
            self.member = 2 - self.made[0] % 3  # the last member is the first to begin
            self.made[0] += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["mine"] = 10.0 * self.member + epoch
            if epoch + 1 == 2 + 2 * self.member:
                self.model.stop_training = True

    tuner = make(objective="max:mine", parallel_trials=3, executor=executor)
    tuner.search(X, Y, **(CALL | {"n_trials": 2}), repeats=3, callbacks=Stops())
    assert columns(tuner, "state", "epochs") == [["complete"] * 2, [6] * 2]
    first, second, third = [0, 1, 1, 1, 1, 1], [10, 11, 12, 13, 13, 13], [20, 21, 22, 23, 24, 25]
    expected = np.mean([first, second, third], axis=0)
    np.testing.assert_allclose(tuner.history(0)["mine"], expected)
    assert tuner.trial(0).value == pytest.approx((1 + 13 + 25) / 3)
    # The model is the first member's, which stopped before the best epoch came.
    assert tuner.best_model().optimizer is not None


def test_an_objective_that_a_callback_adds(make) -> None:
    class Adds(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["agreement"] = 1.0 - abs(logs["accuracy"] - logs["val_accuracy"])

    tuner = make(objective="max:agreement")
    tuner.search(X, Y, **(CALL | {"n_trials": 2, "epochs": 2}), callbacks=[Adds()])
    assert tuner.best_trial.value == max(max(tuner.history(n)["agreement"]) for n in range(2))
    with pytest.raises(paceline.ObjectiveError, match='pass its direction: "max:NAME"'):
        make(study="t", objective="agreement").search(X, Y, **CALL, callbacks=[Adds()])


# -- whose callbacks -------------------------------------------------------------------------------


def test_a_function_of_hp_makes_them_and_its_hyperparameters_count(make) -> None:
    def made(hp: Any) -> Any:
        return [StopsAt(hp.Int("stop", 1, 3))]

    tuner = make(sampler="grid", build=lambda hp: toys.softmax())
    tuner.search(X, Y, **(CALL | {"n_trials": None}), callbacks=made)
    assert columns(tuner, "stop", "epochs") == [[1, 2, 3], [1, 2, 3]]


def test_the_searchs_data_are_not_copied_for_every_trial(make) -> None:
    class Holds(callbacks.Callback):
        seen: set[int] = set()  # noqa: RUF012 - of all copies

        def __init__(self, *arrays: np.ndarray) -> None:
            super().__init__()
            self.arrays = arrays

        def on_train_begin(self, logs: Any = None) -> None:
            self.seen.update(map(id, self.arrays))

    other = np.arange(3)
    tuner = make()
    tuner.search(X, Y, **(CALL | {"n_trials": 2, "epochs": 1}), callbacks=[Holds(XV, other)])
    assert id(XV) in Holds.seen
    assert id(other) not in Holds.seen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"callbacks must be keras.callbacks.Callback .* got \[?3"),
        ([[StopsAt(1)], "x"], r"callbacks must be keras.* got \[?'x'"),
        (lambda hp: object(), r"callbacks must be keras.* got \[?<object"),
    ],
)
def test_what_is_no_callback(make, given, message) -> None:
    with pytest.raises(paceline.UsageError, match=message):
        make().search(X, Y, **CALL, callbacks=given)
    assert not Path("runs").exists()


def test_a_model_that_has_left_its_slot_says_so(make) -> None:
    kept: list[Any] = []

    def callback_state(epoch: int, logs: Any = None) -> None:
        kept.append(mine.model)

    class Keeps(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            kept.append(self.model)
            with pytest.raises(RuntimeError, match="Read their results from logs"):
                self.model.get_metrics_result()

    mine = Keeps()
    make().search(X, Y, **(CALL | {"n_trials": 1, "epochs": 1}), callbacks=[mine])
    with pytest.raises(RuntimeError, match="has left its slot"):
        kept[0].get_weights()


class Freezes(callbacks.Callback):
    """Freezes a layer at the end of the first epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.model.layers[0].trainable = False


class FreezesFirst(callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        self.model.layers[0].trainable = False


class Recompiles(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.compile("sgd", "sparse_categorical_crossentropy")


def test_freezing_while_the_model_trains_has_no_effect_as_in_tensorflow(make, notes) -> None:
    frozen = make(build=lambda hp: toys.softmax_at(hp.Float("lr", 1e-3, 1e-1)))
    frozen.search(X, Y, **CALL, callbacks=[Freezes()])
    plain = make(build=lambda hp: toys.softmax_at(hp.Float("lr", 1e-3, 1e-1)), study="plain")
    plain.search(X, Y, **CALL, callbacks=[callbacks.Callback()])
    for one, other in zip(
        frozen._require_study().trials, plain._require_study().trials, strict=True
    ):
        assert (one.state, one.plan) == ("complete", "vectorized")
        assert one.history == other.history
    assert sum("no effect until the model is compiled again" in note for note in notes) == 1


@pytest.mark.parametrize("callback", [FreezesFirst, Recompiles])
def test_variables_that_are_replaced_fail_the_trial(make, callback: Any) -> None:
    tuner = make(build=lambda hp: toys.softmax())
    with pytest.raises(paceline.BuildError, match="layer.trainable during training, which"):
        tuner.search(X, Y, **CALL, callbacks=[callback()])


def test_in_fit_the_error_says_that_the_model_was_compiled(make) -> None:
    tuner = make(build=lambda hp: toys.softmax(), executor="fit")
    with pytest.raises(paceline.BuildError, match="compiled the model during training"):
        tuner.search(X, Y, **(CALL | {"n_trials": 1}), callbacks=[Recompiles()])


# -- batches ---------------------------------------------------------------------------------------


class OnBatches(callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class OnTests(callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        pass


class StopsBefore(callbacks.Callback):
    """Stops before the second epoch, in a method of its own."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.stop()

    def stop(self) -> None:
        self.model.stop_training = True


def tensorboard(**arguments: Any) -> Any:
    return callbacks.TensorBoard("logs", write_graph=False, **arguments)


@pytest.mark.filterwarnings("ignore:Profiling with the jax")
@pytest.mark.parametrize(
    ("callback", "why"),
    [
        (OnBatches, "OnBatches has its own on_train_batch_end()"),
        (OnTests, "OnTests has its own on_test_begin()"),
        (lambda: callbacks.ModelCheckpoint("a.keras", save_freq=10), "save_freq=10"),
        (lambda: tensorboard(update_freq="batch"), "TensorBoard writes after batches"),
        (lambda: tensorboard(update_freq=50), "update_freq=50"),
        (
            lambda: callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None),
            "LambdaCallback has its own on_train_batch_begin()",
        ),
        (callbacks.SwapEMAWeights, "SwapEMAWeights has its own on_test_begin()"),
        (StopsBefore, "StopsBefore sets stop_training before an epoch"),
    ],
)
def test_what_acts_within_an_epoch_is_not_packed(callback, why) -> None:
    found = why_not_packed([StopsAt(1), callback()])
    assert found is not None and why in found
    assert "only between epochs" in found
    alike = why_not_packed([callback()], by_batch=True)
    assert (alike is None) == (isinstance(callback(), OnBatches | callbacks.LambdaCallback))


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.Callback,
        callbacks.TerminateOnNaN,
        callbacks.History,
        tensorboard,
        lambda: callbacks.ModelCheckpoint("a.keras"),
        callbacks.RemoteMonitor,
    ],
)
def test_what_acts_between_epochs_is_packed(callback) -> None:
    assert why_not_packed([callback()]) is None


def test_trials_whose_callbacks_act_on_batches_share_packs_with_others(make) -> None:
    def made(hp: Any) -> Any:
        return [OnBatches() if hp.Boolean("batches") else StopsAt(1)]

    tuner = make(sampler="grid", build=lambda hp: toys.softmax())
    tuner.search(X, Y, **(CALL | {"n_trials": None, "epochs": 2}), callbacks=made)
    assert columns(tuner, "batches", "plan") == [[False, True], ["vectorized", "vectorized"]]


def test_who_stops_before_an_epoch_trains_one_batch_of_it_as_in_keras(make) -> None:
    """Keras asks for ``stop_training`` after each batch, and validates after the one."""
    call = CALL | {"n_trials": 1, "shuffle": False}
    tuner = make(build=lambda hp: toys.softmax())
    tuner.search(X, Y, **call, callbacks=StopsBefore())
    keras.utils.set_random_seed(tuner.trial(0).seed)
    del call["n_trials"]
    alone = toys.softmax().fit(X, Y, **call, verbose=0, callbacks=[StopsBefore()]).history
    assert tuner.trial(0).epochs == 2
    np.testing.assert_allclose(tuner.history(0)["val_loss"], alone["val_loss"], atol=1e-6)


def test_who_stops_before_the_first_epoch_without_showing_it_trains_in_fit(make, notes) -> None:
    class Hidden(callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            setattr(self.model, "stop_" + "training", True)

    tuner = make(build=lambda hp: toys.softmax())
    tuner.search(X, Y, **CALL, callbacks=[Hidden()])
    assert {(t.state, t.plan, t.epochs) for t in tuner._require_study().trials} == {
        ("complete", "fit", 1)
    }
    assert any("own fit, one at a time: a callback set stop_training" in note for note in notes)


def test_who_stops_before_a_later_epoch_without_showing_it_fails(make) -> None:
    class Hidden(callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            setattr(self.model, "stop_" + "training", epoch == 1)

    tuner = make(build=lambda hp: toys.softmax())
    with pytest.raises(
        paceline.BuildError, match="one more batch.*Set it in on_epoch_end, or use exec"
    ):
        tuner.search(X, Y, **CALL, callbacks=[Hidden()])
    tuner = make(build=lambda hp: toys.softmax(), study="t")
    tuner.search(X, Y, **(CALL | {"batch_size": len(X), "n_trials": 1}), callbacks=Hidden())
    assert columns(tuner, "epochs", "plan") == [[2], ["vectorized"]], "one batch is a whole epoch"


# -- files -----------------------------------------------------------------------------------------


def test_every_trial_writes_files_of_its_own(make, notes, tmp_path) -> None:
    given = [
        callbacks.CSVLogger("log.csv"),
        callbacks.CSVLogger(tmp_path / "log.csv"),
        callbacks.ModelCheckpoint("kept/{epoch}.weights.h5", save_weights_only=True),
        callbacks.CSVLogger("csv/{trial}.csv"),
        callbacks.BackupAndRestore("backup"),
    ]
    for executor in ("packed", "fit"):
        tuner = make(study=executor, executor=executor)
        tuner.search(X, Y, **(CALL | {"n_trials": 2, "epochs": 2}), callbacks=given)
        for number in range(2):
            folder = Path("runs") / executor / "trials" / str(number)
            assert len((folder / "log.csv").read_text().splitlines()) == 3
            assert (tmp_path / f"{executor}-{number}" / "log.csv").is_file()
            assert (folder / "kept" / "2.weights.h5").is_file()
            assert Path("csv", f"{number}.csv").is_file()
    assert not Path("backup").exists()
    assert sum("skipped BackupAndRestore, because Paceline writes" in note for note in notes) == 2
    said = [
        note for note in notes if "trial 0 uses runs/packed/trials/0/log.csv for log.csv" in note
    ]
    assert len(said) == 1


@pytest.mark.slow
def test_members_of_a_trial_write_files_of_their_own(make) -> None:
    make().search(
        X,
        Y,
        **(CALL | {"n_trials": 1, "epochs": 1, "validation_data": None}),
        folds=2,
        callbacks=[callbacks.CSVLogger("log.csv")],
    )
    assert sorted(path.parent.name for path in Path().rglob("log.csv")) == ["0-0", "0-1"]


@pytest.mark.slow
def test_reproducing_a_trial_leaves_its_files_alone(make) -> None:
    given = {"callbacks": [callbacks.CSVLogger("log.csv"), StopsAt(3)]}
    tuner = make()
    tuner.search(X, Y, **(CALL | {"n_trials": 1}), **given)
    before = Path("runs/s/trials/0/log.csv").read_text()
    data = {"x": X, "y": Y, "validation_data": (XV, YV)}
    again = tuner.reproduce(0, **data, **given)
    assert max(again.differences.values()) < 1e-5
    assert again.notes == ()
    assert Path("runs/s/trials/0/log.csv").read_text() == before
    assert Path("runs/s/trials/0-again/log.csv").is_file()
    (note,) = tuner.reproduce(0, **data).notes
    assert "the search had other callbacks (CSVLogger, StopsAt). Pass callbacks=" in note


class Summary(types.ModuleType):
    """Stands in for ``tensorflow.summary``, which is not there: keeps what is written."""

    def __init__(self) -> None:
        super().__init__("tensorflow.summary")
        self.written: dict[str, list[Any]] = {}
        self.open: list[str] = []

    def create_file_writer(self, folder: str) -> Any:
        return Writer(self, Path(folder))

    def scalar(self, name: str, value: Any, step: Any) -> None:
        if self.open:  # as TensorFlow's, which without a writer writes nothing
            found = self.written.setdefault(f"{self.open[-1]} {name}", [])
            found.append((int(np.asarray(step)), float(value)))


class Writer:
    def __init__(self, summary: Summary, folder: Path) -> None:
        self.summary = summary
        self.folder = f"{folder.parent.parent.name} {folder.name}"  # trial, train or validation

    def as_default(self) -> Writer:
        return self

    def __enter__(self) -> None:
        self.summary.open.append(self.folder)

    def __exit__(self, *_: Any) -> None:
        self.summary.open.pop()

    def close(self) -> None:
        self.summary.written[f"{self.folder} closed"] = []


@pytest.mark.slow
def test_tensorboard_writes_what_it_writes_in_fit(make, monkeypatch) -> None:
    """A stand-in for ``tensorflow.summary``: no test here has the real one."""
    # Keras looks once whether there is TensorFlow: it must not find the stand-in, for good.
    keras.utils.set_random_seed(0)
    found = []
    for executor in ("packed", "fit"):
        summary = Summary()
        package = types.ModuleType("tensorflow")
        package.__spec__ = None
        monkeypatch.setattr(package, "summary", summary, raising=False)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "tensorflow", package)
            patch.setitem(sys.modules, "tensorflow.summary", summary)
            patch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
            tuner = make(study=executor, executor=executor)
            tuner.search(
                X,
                Y,
                **(CALL | {"n_trials": 2, "epochs": 3}),
                shuffle=False,
                callbacks=[tensorboard()],
            )
        found.append(summary.written)
    ours, theirs = found
    assert set(ours) == set(theirs)
    assert len(ours["0 train epoch_learning_rate"]) == 3
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-5, err_msg=name)


# -- stopped and gone on with ----------------------------------------------------------------------


class Remembers(callbacks.Callback):
    """State of many kinds, all of which decides what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = np.zeros(3, "float32")
        self.seen: dict[Any, Any] = {"epochs": [], 3: (None, True, np.float32(0.1))}
        self.lock = object()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        bias = self.model.trainable_variables[-1]
        self.mean = np.float32(0.5) * self.mean + np.asarray(bias)
        self.seen["epochs"].append(epoch)
        self.seen[3] = (logs["loss"], not self.seen[3][1], self.seen[3][2] * np.float32(1.5))
        bias.assign(bias + 1e-3 * self.mean * self.seen[3][2])
        logs["kept"] = float(self.mean.sum()) + len(self.seen["epochs"])


def given() -> list[Any]:
    return [
        Remembers(),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
        callbacks.CSVLogger("log.csv"),
        callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.02, restore_best_weights=True),
        callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
    ]


@pytest.fixture
def stopped(monkeypatch):
    """Runs a search that is stopped, as by Ctrl-C, while its packs train for the n-th time."""

    def run(tuner: paceline.Tuner, rounds: int, **call: Any) -> None:
        advance, left = LocalExecutor.advance, [rounds]

        def signalled(self: LocalExecutor, *arguments: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGINT)
            advance(self, *arguments)

        with monkeypatch.context() as patch:
            by_epochs(patch)
            patch.setattr(LocalExecutor, "advance", signalled)
            with pytest.raises(KeyboardInterrupt, match="^$"):
                tuner.search(X, Y, **call)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield run
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow  # tests/tuner/test_resume.py, tests/test_old_studies.py: quickly
@pytest.mark.parametrize("pruner", [None, "asha"])
def test_callbacks_go_on_where_a_search_was_stopped(make, notes, pruner, stopped) -> None:
    call = CALL | {"epochs": 8, "n_trials": 5}
    pruner = pruner and paceline.ASHA(min_epochs=2, reduction_factor=2)
    whole = make(study="whole", pruner=pruner)
    whole.search(X, Y, **call, callbacks=given())
    assert len(set(columns(whole, "epochs")[0])) > 1, "nothing was stopped early"
    for rounds in (3, 4):
        stopped(make(pruner=pruner), rounds, **call, callbacks=given())
    tuner = make(pruner=pruner)
    tuner.search(X, Y, **call, callbacks=given())
    for number in range(5):
        one, other = tuner.trial(number), whole.trial(number)
        assert (one.state, one.history) == (other.state, other.history)
        logs = [Path("runs", s, "trials", str(number), "log.csv") for s in ("s", "whole")]
        assert logs[0].read_text() == logs[1].read_text()
    said = [note for note in notes if "checkpoints do not contain lock of Remembers" in note]
    assert said and len(said) <= 4  # once in each search that took a checkpoint


class Draws(callbacks.Callback):
    """Draws a learning rate before every epoch, and something as training begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.first = random.random()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        drawn = np.random.random() + random.random() + float(keras.random.uniform(()))
        self.model.optimizer.learning_rate.assign(0.01 * (drawn + self.first))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = float(np.asarray(self.model.optimizer.learning_rate))


@pytest.mark.slow
def test_numbers_that_callbacks_draw_are_each_trials_own(make, stopped) -> None:
    """Whoever trains beside it, wherever the search stops, and in ``fit``."""
    call = CALL | {"epochs": 4, "n_trials": 3, "callbacks": Draws()}
    rates = []
    for slots in (3, 1):
        tuner = make(study=f"s{slots}", parallel_trials=slots)
        tuner.search(X, Y, **call)
        rates.append([tuner.history(number)["rate"] for number in range(3)])
    assert rates[0] == rates[1]
    assert len({tuple(each) for each in rates[0]}) == 3
    stopped(make(parallel_trials=3), 3, **call)
    tuner = make(parallel_trials=3)
    tuner.search(X, Y, **call)
    assert [tuner.history(number)["rate"] for number in range(3)] == rates[0]


def test_a_search_with_other_callbacks_does_not_go_on_with_the_checkpoint(
    make, notes, stopped
) -> None:
    stopped(make(), 2, **CALL, callbacks=[StopsAt(5)])
    make().search(X, Y, **CALL, callbacks=[callbacks.TerminateOnNaN()])
    assert any("the search arguments have changed (callbacks)" in note for note in notes)


class Interrupted(callbacks.Callback):
    """Ctrl-C, in the epoch that is set before the search."""

    epoch = -1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == Interrupted.epoch:
            Interrupted.epoch = -1
            os.kill(os.getpid(), signal.SIGINT)


def writing() -> list[Any]:
    return [
        callbacks.CSVLogger("log.csv"),
        callbacks.CSVLogger("csv/{trial}.csv"),
        callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True),
        Interrupted(),
    ]


@pytest.fixture
def interrupted(make):
    """Stops a search of one trial, which writes files, after the second of four epochs."""

    def run(executor: str) -> dict[str, Any]:
        arguments = {"executor": executor, "parallel_trials": 1}
        Interrupted.epoch = 1
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(**arguments).search(X, Y, **SHORT, callbacks=writing())
        return arguments

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield run
    Interrupted.epoch = -1
    signal.signal(signal.SIGINT, before)


SHORT = CALL | {"n_trials": 1, "epochs": 4}
WRITTEN = ["1.weights.h5", "2.weights.h5", "3.weights.h5", "4.weights.h5", "log.csv"]


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_after_its_folder_was_moved_a_trial_writes_to_the_new_place(
    make, interrupted, executor
) -> None:
    arguments = interrupted(executor)
    Path("runs").rename("moved")
    tuner = make(**arguments, directory="moved")
    tuner.search(X, Y, **SHORT, callbacks=writing())
    assert tuner.trial(0).epochs == 4
    folder = Path("moved/s/trials/0")
    assert sorted(path.name for path in folder.iterdir()) == WRITTEN
    assert len((folder / "log.csv").read_text().splitlines()) == 5
    assert not Path("runs").exists()


@pytest.mark.parametrize("executor", [pytest.param("packed", marks=pytest.mark.slow), "fit"])
def test_a_checkpoint_that_is_made_up_does_not_say_where_callbacks_write(
    make, interrupted, executor, tmp_path
) -> None:
    arguments = interrupted(executor)
    outside = tmp_path / "outside"
    outside.mkdir()
    checkpoints = CheckpointManager(Path("runs/s/checkpoints"), lambda text: None)
    snapshot = checkpoints.load()
    assert snapshot is not None
    made_up = {
        "filepath": str(outside / "{epoch}.weights.h5"),
        "filename": str(outside / "log.csv"),
        "log_dir": str(outside),
        "_save_model": "no method any more",
    }
    kept = list(kept_in(snapshot.facts))
    assert {"CSVLogger", "ModelCheckpoint", "Interrupted"} <= {facts["class"] for facts in kept}
    for facts in kept:
        facts["attributes"] |= made_up
    checkpoints.save(snapshot)
    checkpoints.close()
    tuner = make(**arguments)
    tuner.search(X, Y, **SHORT, callbacks=writing())
    trial = tuner.trial(0)
    assert (trial.state, trial.epochs) == ("complete", 4)
    assert sorted(path.name for path in Path("runs/s/trials/0").iterdir()) == WRITTEN
    assert len(Path("csv/0.csv").read_text().splitlines()) == 5
    assert list(outside.iterdir()) == []


def kept_in(facts: Any) -> Iterator[dict[str, Any]]:
    """What the facts of a checkpoint hold of callbacks."""
    if isinstance(facts, dict) and {"class", "attributes"} <= set(facts):
        yield facts
    elif isinstance(facts, (dict, list)):
        for part in facts.values() if isinstance(facts, dict) else facts:
            yield from kept_in(part)


class Writes(callbacks.Callback):
    """Of a user's own; what it writes, it writes to paths of several kinds."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.file, self.log_dir = f"{folder}/logs", Path(folder), folder
        self.files: list[Any] = []
        self.newest, self.kept, self.scores = "none", [], {}
        self.phase, self.n = "first", 0


def test_state_is_restored_and_paths_are_not() -> None:
    before, arrays = Writes("old"), {}
    begun_with = attributes_of([before])
    before.phase, before.n, before.files, before.late = "second", 3, [Path("old")], 7
    before.newest, before.kept, before.scores = "old.csv", ["old/1.h5"], {"old.keras": 0.5}
    (facts,) = callback_state([before], "c", arrays, begun_with)
    assert sorted(facts["lost"]) == ["files", "kept", "late", "newest", "scores"]
    assert "old" not in json.dumps(facts)
    older = {"file": {"path": "old"}, "folder": "old/logs", "log_dir": "old", "late": 7}
    older |= {"files": {"list": [{"path": "old"}]}}  # as it was once kept
    made_up = {"newest": "model.py", "kept": {"list": [{"tuple": ["/etc/passwd", 1]}]}}
    made_up |= {"scores": {"dict": [["../up", 0.5]]}, "_paceline_paths": {"tuple": []}}
    facts["attributes"] |= older | made_up
    after = Writes("new")
    with resumed([after], CallbackState({"callbacks": [facts]}, arrays)):
        pass
    assert (after.phase, after.n) == ("second", 3)
    assert (after.folder, after.file, after.log_dir) == ("new/logs", Path("new"), "new")
    assert (after.files, after.newest, after.kept, after.scores) == ([], "none", [], {})
    assert not hasattr(after, "late")


def test_what_keras_makes_of_arguments_is_not_restored() -> None:
    """Another release of Keras turned the sign of ``min_delta``, or did not."""
    before, arrays = callbacks.ReduceLROnPlateau("val_loss", min_delta=0.1), {}
    begun_with = attributes_of([before])
    before.min_delta, before.best, before.wait = -before.min_delta, 0.5, 2
    (facts,) = callback_state([before], "c", arrays, begun_with)
    after = callbacks.ReduceLROnPlateau("val_loss", min_delta=0.1)
    with resumed([after], CallbackState({"callbacks": [facts]}, arrays)):
        after.on_train_begin()
    assert (after.min_delta, after.best, after.wait) == (0.1, 0.5, 2)


def test_a_callback_that_a_function_returns_again_is_refused(tmp_path: Path) -> None:
    """Where that shows before the search it is refused then; here it shows late."""
    kept = keras.callbacks.EarlyStopping("loss")
    calls = iter(range(4))

    def now_and_then(hp: Any) -> list[Any]:
        return [keras.callbacks.EarlyStopping("loss") if next(calls) == 1 else kept]

    factory = CallbackFactory(now_and_then, StudyPaths(tmp_path), lambda text: None)
    for trial in "01":
        factory.of(trial, None, None)
    with pytest.raises(UsageError, match="the same EarlyStopping again.*pass a list"):
        factory.of("2", None, None)


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize("what", ["momentum of the optimizer", "rate of Dropout", "beta of"])
def test_numbers_that_callbacks_set_before_the_first_step_are_not_lost(
    hook: str, what: str, fresh_folder: Path
) -> None:
    """Keras' fit traces its step after these hooks, so there they count."""

    def sets(self: Any, *given: Any, **more: Any) -> None:
        if what.startswith("momentum"):
            self.model.optimizer.momentum = 0.0
        elif what.startswith("rate"):
            self.model.layers[0].rate = 0.9
        else:
            self.model.beta = 2.0

    setter = type("Sets", (keras.callbacks.Callback,), {hook: sets})

    def build(hp: Any) -> Any:
        head = keras.layers.Dense(3, activation="softmax")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dropout(0.1), head])
        model.beta = 1.0
        sgd = keras.optimizers.SGD(hp.Float("lr", 1e-2, 1e-1), momentum=0.5)
        model.compile(sgd, "sparse_categorical_crossentropy")
        return model

    notes: list[str] = []
    tuner = paceline.Tuner(build, "loss", "s", on_note=notes.append)
    call: dict[str, Any] = {"epochs": 2, "shuffle": False}
    tuner.search(*toys.data(), n_trials=2, callbacks=lambda hp: [setter()], **call)
    assert [why.split(" and its like")[0] for why in notes if f"callback set {what}" in why] == [
        "trial 0"
    ]
    for trial in tuner._require_study().trials:
        assert (trial.state, trial.plan) == ("complete", "fit")
        history = alone(trial, build, *toys.data(), callbacks=[setter()], **call)
        np.testing.assert_allclose(trial.history["loss"], history["loss"], rtol=1e-5)
