"""Trains the trials that cannot be packed with Keras' own ``fit``, one after another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from paceline.data.adapters import copied
from paceline.executor import process
from paceline.executor.base import (
    Answer,
    EpochReport,
    Failed,
    Job,
    Report,
    UnsavedAttributes,
    Weights,
    settled,
)
from paceline.executor.batch_checks import batches_checked
from paceline.executor.state.facts import FitFacts
from paceline.executor.state.fit_state import Arrays, FitState
from paceline.executor.tf_replicas import Replicas, find
from paceline.pack.callbacks.per_trial import numbers
from paceline.pack.callbacks.state import release
from paceline.program import keras_private
from paceline.program.initial_weights import values_kept
from paceline.program.trace import flat_logs

_DATA = ("x", "y", "sample_weight")
#: After this many trials the memory of dropped models is returned to the system.
_COLLECTED = 8


class FitExecutor:
    """Trains each trial with ``model.fit``: any Keras model, any data, any Keras backend.

    ``arguments`` are those of ``fit`` besides batch size, epochs and callbacks. Where jobs have
    folds, ``validation_data`` holds all examples, and each fold takes its own from them.
    ``batched`` says whether ``fit`` is told the batch size: a data set has a batch size of its own.
    ``elsewhere`` trains a job in another process, reports its epochs and raises its errors; None:
    this process trains.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        batched: bool = True,
        note: Callable[[str], None] = lambda _: None,
        elsewhere: Callable[[Job, Callable[[EpochReport], Answer]], None] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._arguments, self._note = dict(arguments), note
        self._replicas: Replicas | None = None  # found when the first trial trains
        self._batched = batched
        self._queue: deque[Job] = deque()
        self._state: FitState | None = None  # of the training that runs or was stopped
        self.seconds = 0.0  # spent on training
        self.used = False  # whether any trial has been trained
        self._trained = 0  # trials
        self._losses = UnsavedAttributes(note)

    def submit(self, job: Job) -> None:
        """Queues a trial; its model is built again in its turn, from the trial's seed."""
        job.model = None
        folds = [replace(job, number=job.number + i, folds=(f,)) for i, f in enumerate(job.folds)]
        # The first member is last: see tuner/search/members.py.
        self._queue.extend(reversed(folds or [job]))

    def snapshot(self, arrays: Arrays, jobs: Container[int]) -> FitFacts | None:
        """The running training after its last epoch; None if there is none.

        Its arrays are added to ``arrays`` by name. ``jobs`` are the numbers of unfinished jobs.
        """
        state = self._state
        if state is None or state.epoch == 0 or state.number not in jobs:
            return None
        facts = state.capture(arrays)
        self._losses.say(facts.callbacks)
        return facts

    def restore(self, facts: FitFacts, arrays: Mapping[str, np.ndarray]) -> None:
        """Has a submitted job train on from where ``snapshot`` was taken."""
        own = {name: array for name, array in arrays.items() if name.startswith("fit.")}
        self._state = FitState(facts.job, facts, own)

    def drop(self, number: int) -> None:
        """Forgets a trial whose turn has not come; does nothing if there is none."""
        self._queue = deque(job for job in self._queue if job.number != number)

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting."""
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """Number of trials whose turn has not come."""
        return len(self._queue)

    @property
    def next_number(self) -> int:
        """Number of the trial whose turn is next."""
        return self._queue[0].number

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Trains one trial to its end and reports every epoch; the trial's errors end it alone."""
        job = self._queue.popleft()
        self.used = True
        began = time.perf_counter()
        search = _SearchReport(report)
        try:
            with keras_private.gradients_forgotten():
                self._train(job, search)
        except Exception as error:
            if search.stopped:  # the trial has ended by now, or continues in another search
                self._note(
                    f"a callback of a trial that was stopped failed in on_train_end: "
                    f"{type(error).__name__}: {error}"
                )
            elif search.error is None:
                failed(job.number, error)
        finally:
            self.seconds += time.perf_counter() - began
            self._trained += 1
            if self._trained % _COLLECTED == 0:
                process.give_back()  # models are in cycles, and a search makes the collector wait
        if search.error is not None:  # also where a user's own ``fit`` has swallowed it
            raise search.error

    def _train(self, job: Job, report: Callable[[EpochReport], Answer]) -> None:
        if self._elsewhere is not None:
            self._elsewhere(job, report)
            return
        if self._replicas is None:
            self._replicas = find(self._note)
        with self._replicas.scope():
            model = job.rebuild()
        setting = job.setting
        arguments = self._arguments | dict(setting.fit if setting is not None else {})
        arguments |= self._fold(job, arguments)
        if self._batched:
            arguments = self._replicas.round({**arguments, "batch_size": job.batch_size})
        own = [] if job.callbacks is None else job.callbacks(job.number, model)
        state = self._state
        if state is None or state.number != job.number:
            state = FitState(job.number)
        # With a data set, a snapshot may not determine how a training continues.
        self._state = state if self._batched else None
        first = job.first_epoch
        if "x" in arguments:
            arguments["x"] = copied(arguments["x"], state.epoch)
        arguments["initial_epoch"] = arguments.get("initial_epoch", first) + state.epoch
        # Our callback is last: it reports logs and weights as the user's callbacks leave them.
        callbacks = [*state.among(own), _Reporter(job, report, state)]
        epochs = first + job.epochs
        try:
            with values_kept(model), batches_checked():
                model.fit(**arguments, epochs=epochs, callbacks=callbacks, verbose=0)
        except BaseException as error:
            release(callbacks)  # their ``on_train_end`` was not called
            if isinstance(error, TypeError) and model.train_function is None:
                raise RuntimeError(
                    "a callback compiled the model during training, which stops fit in Keras 3. "
                    "Compile in build(hp), and train the best model further after the search"
                ) from error
            raise

    def _fold(self, job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that differ for a fold."""
        if not job.folds:
            return {}
        (fold,) = job.folds

        def part(name: str, numbers: np.ndarray) -> Any:
            return keras.tree.map_structure(lambda a: a[numbers], arguments[name])

        found = {name: part(name, fold.train) for name in _DATA if name in arguments}
        return {**found, "validation_data": part("validation_data", fold.validation)}


class _SearchReport:
    """Reports to the search, and keeps the error that the search raised.

    The search is called inside of ``model.fit``, where its errors look like those of the trial.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.error: Exception | None = None  # what ``report`` raised
        self.stopped = False  # whether the search has answered that the trial trains no further

    def __call__(self, epoch: EpochReport) -> Answer:
        try:
            answer = settled(self._report(epoch))
            self.stopped = answer != "continue"
            return answer
        except Exception as error:
            self.error = error
            raise


class _Reporter(keras.callbacks.Callback):
    """Reports every epoch; the last one once the user's callbacks have ended too."""

    def __init__(self, job: Job, report: Callable[[EpochReport], Answer], state: FitState) -> None:
        super().__init__()
        self._job, self._report, self._state = job, report, state
        self._epochs = state.epoch  # the user's ``initial_epoch`` is not counted
        self._last = time.perf_counter()
        self._final: EpochReport | None = None
        self._built: tuple[list[Any], list[Any]] = [], []

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._built = model.trainable_variables, model.non_trainable_variables

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert self.model is not None
        self._epochs += 1
        seconds = time.perf_counter() - self._last
        report = EpochReport(
            number=self._job.number,
            epoch=self._epochs,
            logs=numbers(logs or {}, self._arrays(logs or {})),
            seconds=seconds,
            wall=seconds,
            program=None,
            plan="fit",
            weights=self._weights,
            last=epoch + 1 >= self._job.first_epoch + self._job.epochs
            or bool(self.model.stop_training),
        )
        if report.last and self._job.callbacks is not None:
            weights = self._weights()  # before callbacks change them, as with restore_best_weights
            self._final = replace(report, weights=lambda: weights)
        elif self._report(report) != "continue":
            self._state.freeze()
            self.model.stop_training = True
        self._last = time.perf_counter()

    def _arrays(self, logs: Mapping[str, Any]) -> list[str]:
        """Names of the model's metrics that are arrays, such as those of each class."""
        arrays = [name for name, value in logs.items() if getattr(value, "shape", ())]
        if not arrays:
            return []
        assert self.model is not None
        metrics = flat_logs(self.model.get_metrics_result())
        return [name for name in arrays if name.removeprefix("val_") in metrics]

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._final is not None:
            self._report(self._final)

    def _weights(self) -> Weights:
        def values(variables: list[Any]) -> list[np.ndarray]:
            return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]

        assert self.model is not None
        lists = self.model.trainable_variables, self.model.non_trainable_variables
        if sum(map(len, lists)) == sum(map(len, self._built)):
            # A callback may have frozen layers since; the model that build makes again has not.
            lists = self._built
        return values(lists[0]), values(lists[1])
