"""Tests that every executor must pass. Derive a test class from ``ExecutorContract``:

    class TestMyExecutor(ExecutorContract):
        def executor(self, data, validation):
            return MyExecutor(...)

The suite needs Keras on the backend that is to be tested, and pytest.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from paceline.executor.base import Answer, EpochReport, Executor, Job
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters

#: x f32[N, 6], y i64[N]: examples whose class shows in the features.
Data = tuple[np.ndarray, np.ndarray]


def _data(n: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 6)).astype("float32")
    x[np.arange(n), y] += 2.0
    return x, y


def _model(dropout: float, rate: float) -> Any:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class _Halves(keras.callbacks.Callback):
    """Halves the learning rate after every epoch, and logs it."""

    model: Any

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = self.model.optimizer.learning_rate
        rate.assign(rate / 2)
        logs["rate"] = np.asarray(keras.ops.convert_to_numpy(rate)).item()


class _Stops(keras.callbacks.Callback):
    """Stops training after so many epochs, and spoils the weights when training ends."""

    model: Any

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 == self.after:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights([0 * w for w in self.model.get_weights()])


@dataclass
class Ran:
    """What an executor reported.

    Attributes:
        reports: Number of a job -> its reports.
        weights: Number of a job -> its variables after each epoch.
        failed: Number of a job -> the error that ended it.
    """

    reports: dict[int, list[EpochReport]] = field(default_factory=dict)
    weights: dict[int, list[list[np.ndarray]]] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)

    def history(self, number: int) -> dict[str, list[float]]:
        """The logs of a job: name -> a value for each epoch."""
        found: dict[str, list[float]] = {}
        for report in self.reports[number]:
            for name, value in report.logs.items():
                found.setdefault(name, []).append(value)
        return found


class ExecutorContract(ABC):
    """Tests of an executor: derive a class from this one and define ``executor``.

    Attributes:
        tolerance: What losses may differ by from those of Keras' own ``fit``.
        batch_size: Examples per step.
        epochs: Epochs of each job.
    """

    # float32, three epochs: the order of sums differs between a pack and ``fit``.
    tolerance = 1e-4
    batch_size = 16
    epochs = 3

    @abstractmethod
    def executor(self, data: Data, validation: Data) -> Executor:
        """Returns an executor that trains on these data without shuffling them."""

    def job(self, number: int, rate: float = 0.01, **fields: Any) -> Job:
        """A trial of a small classifier."""
        build = ModelBuilder(lambda hp: _model(0.2, rate))

        def rebuild() -> Any:
            return build(HyperParameters(), 7 + number)

        arguments = {"epochs": self.epochs, "batch_size": self.batch_size, **fields}
        return Job(number, 7 + number, model=rebuild(), rebuild=rebuild, **arguments)

    def run(self, *jobs: Job, answer: Callable[[EpochReport], Answer] | None = None) -> Ran:
        """Runs jobs to their end."""
        ran = Ran()

        def report(epoch: EpochReport) -> Answer:
            ran.reports.setdefault(epoch.number, []).append(epoch)
            trainable, non_trainable = epoch.weights()
            ran.weights.setdefault(epoch.number, []).append([*trainable, *non_trainable])
            return "continue" if answer is None else answer(epoch)

        executor = self.executor(self.data, self.validation)
        try:
            with random_state_kept():
                for job in jobs:
                    executor.submit(job)
                assert executor.busy
                while executor.busy:
                    executor.advance(report, lambda: False, ran.failed.__setitem__)
        finally:
            getattr(executor, "close", lambda: None)()
        return ran

    @property
    def data(self) -> Data:
        """Examples to train on; their number is not a multiple of the batch size."""
        return _data(50, 0)

    @property
    def validation(self) -> Data:
        """Examples to validate on."""
        return _data(23, 1)

    def alone(self, number: int, rate: float = 0.01, **arguments: Any) -> dict[str, list[float]]:
        """The history of Keras' own ``fit``."""
        with random_state_kept():
            model = self.job(number, rate).rebuild()
            x, y = self.data
            return model.fit(
                x,
                y,
                validation_data=self.validation,
                shuffle=False,
                epochs=self.epochs,
                batch_size=self.batch_size,
                verbose=0,
                **arguments,
            ).history

    # -- the contract ------------------------------------------------------------------------------

    def test_every_epoch_is_reported_once_and_as_keras_has_it(self) -> None:
        """Epochs count from 1; logs and their names are those of ``fit``."""
        ran = self.run(self.job(0), self.job(1, 0.03))
        assert not ran.failed
        for number, rate in ((0, 0.01), (1, 0.03)):
            reports = ran.reports[number]
            assert [report.epoch for report in reports] == [1, 2, 3]
            assert [report.last for report in reports] == [False, False, True]
            assert all(report.seconds > 0 for report in reports)
            alone, ours = self.alone(number, rate), ran.history(number)
            assert set(ours) == set(alone)
            for name, values in alone.items():
                np.testing.assert_allclose(ours[name], values, atol=self.tolerance, err_msg=name)

    def test_weights_are_those_of_the_epoch(self) -> None:
        """Not those of a later one."""
        ran = self.run(self.job(0))
        (loss,) = ran.history(0)["val_loss"][-1:]
        with random_state_kept():
            model = self.job(0).rebuild()
        for variable, value in zip(
            [*model.trainable_variables, *model.non_trainable_variables],
            ran.weights[0][-1],
            strict=True,
        ):
            variable.assign(value)
        x, y = self.validation
        found = model.evaluate(x, y, batch_size=self.batch_size, verbose=0, return_dict=True)
        assert abs(found["loss"] - loss) < self.tolerance
        assert not np.array_equal(ran.weights[0][0][0], ran.weights[0][-1][0])

    def test_the_same_seed_gives_the_same_history_whoever_else_trains(self) -> None:
        """And the user's random state is not what decides."""
        random.seed(1)
        np.random.seed(1)
        one = self.run(self.job(3)).history(3)
        random.seed(2)
        np.random.seed(2)
        other = self.run(self.job(2), self.job(3), self.job(4)).history(3)
        for name, values in one.items():
            np.testing.assert_allclose(other[name], values, atol=self.tolerance, err_msg=name)

    def test_an_answer_ends_one_trial_only(self) -> None:
        """As a pruner's."""

        def answer(report: EpochReport) -> Answer:
            return "stop" if report.number == 0 and report.epoch == 2 else "continue"

        ran = self.run(self.job(0), self.job(1), answer=answer)
        assert [len(ran.reports[number]) for number in (0, 1)] == [2, 3]

    def test_callbacks_are_each_trials_own_and_may_stop_it(self) -> None:
        """What they make of logs, weights and learning rate counts."""
        made: dict[int, list[Any]] = {}

        def callbacks(number: int) -> list[Any]:
            made[number] = [_Halves(), _Stops(after=2 - number)]
            return made[number]

        ran = self.run(*(self.job(number, callbacks=callbacks) for number in (0, 1)))
        assert not ran.failed
        assert [len(ran.reports[number]) for number in (0, 1)] == [2, 1]
        assert [report.last for report in ran.reports[0]] == [False, True]
        np.testing.assert_allclose(ran.history(0)["rate"], [0.005, 0.0025], rtol=1e-5)
        alone = self.alone(0, callbacks=[_Halves(), _Stops(after=2)])
        np.testing.assert_allclose(
            ran.history(0)["val_loss"], alone["val_loss"], atol=self.tolerance
        )
        assert np.any(ran.weights[0][-1][0]), "weights of after the end of training"

    def test_a_callback_that_raises_fails_its_trial_only(self) -> None:
        """Whichever hook it is; the error is the user's own."""

        class Raises(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    raise ValueError("no more")

        def callbacks(number: int) -> list[Any]:
            return [Raises()] if number == 0 else []

        ran = self.run(*(self.job(number, callbacks=callbacks) for number in (0, 1)))
        assert {number: str(error) for number, error in ran.failed.items()} == {0: "no more"}
        assert [len(ran.reports[number]) for number in (0, 1)] == [1, 3]

    def test_an_error_of_the_report_is_raised_and_fails_no_trial(self) -> None:
        """It is the search's error; whoever calls ``advance`` must see it as it is."""
        error = ValueError("of the search")
        failed: dict[int, BaseException] = {}
        for wrong in (1, self.epochs):  # the last epoch is reported when training has ended

            def report(epoch: EpochReport, wrong: int = wrong) -> Answer:
                if epoch.epoch == wrong:
                    raise error
                return "continue"

            executor = self.executor(self.data, self.validation)
            raised: BaseException | None = None
            try:
                with random_state_kept():
                    executor.submit(self.job(0, callbacks=lambda number: [_Halves()]))
                    while raised is None and executor.busy:
                        try:
                            executor.advance(report, lambda: False, failed.__setitem__)
                        except ValueError as caught:
                            raised = caught
            finally:
                getattr(executor, "close", lambda: None)()
            assert raised is error, f"the report of epoch {wrong} raised; advance did not"
            assert not failed
