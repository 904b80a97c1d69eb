"""Tests that every executor must pass. Derive a test class from ``ExecutorContract``:

    class TestMyExecutor(ExecutorContract):
        def executor(self, data, validation):
            return MyExecutor(...)

The suite needs Keras on the backend that is to be tested, and pytest.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import msgspec
import numpy as np

from paceline.executor.base import Answer, EpochReport, Executor, Job, JobSpec
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.process import random_state_kept
from paceline.executor.state.facts import PackFacts
from paceline.executor.state.snapshot import Arrays
from paceline.search_space import HyperParameters

#: x f32[N, 6], y i64[N]: examples whose class shows in the features.
Data = tuple[np.ndarray, np.ndarray]


def nobody(number: int) -> None:
    """No job that has ended can be built again: an ``Example``."""


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
    """Stops training after this many epochs, and spoils the weights when training ends."""

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


def make_job(spec: JobSpec, batch_size: int) -> Job:
    """The job of a spec: a small classifier; hparams hold its rate, and fields of ``Job``."""
    fields = dict(spec.hparams)
    rate = fields.pop("rate")
    build = ModelBuilder(lambda hp: _model(0.2, rate))

    def rebuild() -> Any:
        return build(HyperParameters(), spec.seed)

    return Job(
        spec.number,
        spec.seed,
        spec.epochs,
        batch_size,
        model=rebuild(),
        rebuild=rebuild,
        spec=spec,
        **fields,
    )


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
        epochs = fields.pop("epochs", self.epochs)
        hparams = {"rate": rate, **fields}
        return make_job(JobSpec(number, number, 7 + number, epochs, hparams), self.batch_size)

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

        def callbacks(number: int, model: Any) -> list[Any]:
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

        def callbacks(number: int, model: Any) -> list[Any]:
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
                    executor.submit(self.job(0, callbacks=lambda number, model: [_Halves()]))
                    while raised is None and executor.busy:
                        try:
                            executor.advance(report, lambda: False, failed.__setitem__)
                        except ValueError as caught:
                            raised = caught
            finally:
                getattr(executor, "close", lambda: None)()
            assert raised is error, f"the report of epoch {wrong} raised; advance did not"
            assert not failed


class PackExecutorContract(ExecutorContract):
    """Further tests, of what a search uses of an executor of packs."""

    @abstractmethod
    def executor(self, data: Data, validation: Data) -> PackExecutor:
        """Returns an executor that trains on these data without shuffling them."""

    @contextmanager
    def opened(self, *numbers: int) -> Iterator[PackExecutor]:
        """A block with an executor that has these jobs."""
        executor = self.executor(self.data, self.validation)
        try:
            with random_state_kept():
                for number in numbers:
                    executor.submit(self.job(number))
                yield executor
        finally:
            executor.close()

    @staticmethod
    def train(
        executor: PackExecutor,
        answer: Callable[[EpochReport], Answer] = lambda report: "continue",
        histories: dict[int, list[dict[str, float]]] | None = None,
        rounds: int = 10_000,
    ) -> dict[int, list[dict[str, float]]]:
        """Trains until nothing is left to train, or for this many rounds.

        Returns:
            Number of a job -> the logs of its epochs, in order.
        """
        found = {} if histories is None else histories

        def report(epoch: EpochReport) -> Answer:
            logs = found.setdefault(epoch.number, [])
            assert len(logs) == epoch.epoch - 1, "each epoch is reported once, in order"
            logs.append(epoch.logs)
            return answer(epoch)

        def failed(number: int, error: BaseException) -> None:
            raise AssertionError(f"job {number} failed: {error}")

        while executor.busy and rounds:
            executor.advance(report, lambda: False, failed)
            rounds -= 1
        return found

    def whole(self, *numbers: int) -> dict[int, list[dict[str, float]]]:
        """The histories of jobs that nobody has disturbed."""
        with self.opened(*numbers) as executor:
            return self.train(executor)

    def test_a_paused_job_goes_on_as_if_it_had_never_stopped(self) -> None:
        """The pause may last while others train; nothing is busy for its sake."""

        def answer(report: EpochReport) -> Answer:
            return "pause" if report.number == 0 and report.epoch == 1 else "continue"

        with self.opened(0, 1) as executor:
            histories = self.train(executor, answer)
            assert [len(histories[number]) for number in (0, 1)] == [1, 3]
            assert not executor.busy
            executor.resume(0)
            assert executor.busy
            self.train(executor, histories=histories)
        assert histories == self.whole(0, 1)

    def test_a_paused_job_is_resumed_once(self) -> None:
        """A job that is not paused cannot be."""
        with self.opened(0) as executor:
            self.train(executor, lambda report: "pause")
            executor.resume(0)
            for number in (0, 5):
                try:
                    executor.resume(number)
                except KeyError:
                    continue
                raise AssertionError(f"job {number} is not paused")

    def test_a_dropped_job_is_never_reported_again(self) -> None:
        """Whether it waits or is paused; the others train on."""
        with self.opened(0, 1, 2) as executor:
            executor.drop(2)
            histories = self.train(
                executor, lambda report: "pause" if report.number == 0 else "continue"
            )
            executor.drop(0)
            executor.drop(7)
            assert not executor.busy
        assert {number: len(logs) for number, logs in histories.items()} == {0: 1, 1: 3}

    def test_a_withdrawn_job_is_forgotten_wherever_it_is(self) -> None:
        """Its number may be used again, for a job that starts over."""
        with self.opened(0, 1) as executor:
            histories = self.train(executor, rounds=1)
            executor.withdraw(1)
            assert not executor.in_slot(1)
            histories.pop(1, None)
            executor.submit(self.job(1))
            self.train(executor, histories=histories)
        assert histories == self.whole(0, 1)

    def test_a_snapshot_restores_jobs_in_another_executor(self) -> None:
        """Running and paused ones; what they train then is what they would have trained."""
        arrays: Arrays = {}
        lasting: dict[str, Arrays] = {}

        def answer(report: EpochReport) -> Answer:
            return "pause" if report.number == 0 else "continue"

        with self.opened(0, 1, 2) as executor:
            histories = self.train(executor, answer, rounds=1)
            while 0 not in histories:
                self.train(executor, answer, histories, rounds=1)
            facts = msgspec.to_builtins(executor.snapshot(arrays, lasting), str_keys=True)
        for more in lasting.values():
            arrays |= more
        facts = msgspec.convert(facts, PackFacts, str_keys=True)  # as a file is read
        with self.opened() as executor:
            with executor.resubmitting(facts, nobody):
                for number in (0, 1, 2):
                    executor.submit(self.job(number))
            assert executor.restore(facts, arrays, nobody) == []
            self.train(executor, histories=histories)
            assert len(histories[0]) == 1, "it is paused"
            executor.resume(0)
            self.train(executor, histories=histories)
        assert histories == self.whole(0, 1, 2)

    def test_a_job_starts_from_variables_that_were_kept(self) -> None:
        """Those of another shape are refused, and the job starts over."""
        kept: list[Any] = []

        def answer(report: EpochReport) -> Answer:
            if report.last and report.state is not None:
                kept.extend(report.state().lists())
            return "continue"

        with self.opened() as executor:
            executor.submit(self.job(0, epochs=2))
            self.train(executor, answer)
        assert kept, "the variables of the last epoch are to be had"
        with self.opened() as executor:
            executor.submit(self.job(0))
            assert not executor.start_from(0, 2, kept[:2])
            assert executor.start_from(0, 2, kept)
            histories = {0: [{}, {}]}
            self.train(executor, histories=histories)
        assert histories[0][2] == self.whole(0)[0][2]

    def test_what_a_search_shows_adds_up(self) -> None:
        """Programs, plans, rounds, compiled steps and stays in slots."""
        with self.opened(0, 1) as executor:
            assert executor.max_slots >= 1 and executor.waiting == 2
            histories = self.train(executor)
            assert executor.program_counts()["distinct"] == 1
            ready, asked = executor.compiles
            assert ready == asked >= 1 and executor.compiled_steps()
            assert executor.plans <= {"vectorized", "looped", "sequential"} and executor.plans
            assert executor.timings.n_rounds >= self.epochs
            assert 0 < (executor.timings.busy_share or 0) <= 1
            assert executor.waiting == 0 and executor.slots_now() == []
            stays, packs = executor.timeline.take(all_ended=True)
        assert {stay.trial for stay in stays} <= {0, 1}
        assert {stay.pack for stay in stays} <= {pack.pack for pack in packs}
        assert len(histories) == 2
