"""The fits of one function: Keras' loop over epochs, its steps done by a pack."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from paceline.compat.interception import fit_arguments as requests
from paceline.compat.interception.call import FitRecord
from paceline.compat.interception.fit_arguments import FitArguments
from paceline.compat.interception.fit_patch import Fit
from paceline.compat.interception.function_thread import FunctionThread, watched_by
from paceline.compat.interception.model_variables import Variables
from paceline.executor.base import EpochReport, Job
from paceline.executor.local import LocalExecutor
from paceline.program import keras_private, trace
from paceline.program.canonical import Unpackable


@dataclass
class PackedFit:
    """A fit in a pack.

    Attributes:
        number: Of the job, for the executor.
        worker: Whose fit it is.
        executor: Has its pack.
        order: The examples of the epoch to come, in their order: i32[N]; None: as they are.
        report: Of the last epoch.
        error: Why its pack gave it up; None while it trains.
        over: The fit has ended: its slot is free.
        seconds: Its share of the pack's time so far.
        epochs: Epochs trained.
    """

    number: int
    worker: FunctionThread
    executor: LocalExecutor
    order: np.ndarray | None = None
    report: EpochReport | None = None
    error: BaseException | None = None
    over: bool = False
    seconds: float = 0.0
    epochs: int = 0


class FitScheduler(Protocol):
    """Where fits ask for a place in a pack."""

    def executor_for(self, request: FitArguments) -> LocalExecutor:
        """The executor that has the request's data."""
        ...

    def number(self) -> int:
        """A number that no ride has had."""
        ...

    def board(self, ride: PackedFit) -> None:
        """Has the engine know a ride that its executor has taken in."""
        ...

    def say(self, text: str) -> None:
        """Tells the user something, once."""
        ...


class Fits:
    """Handles the fits of one function, in its thread.

    Args:
        worker: The function.
        desk: Gives places in packs.
        noun: What to call the function in notes.
    """

    def __init__(self, worker: FunctionThread, desk: FitScheduler, noun: str) -> None:
        self._worker, self._desk, self._noun = worker, desk, noun

    def fit(self, model: Any, original: Fit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``model.fit(*args, **kwargs)`` returns."""
        self._worker.check()
        try:
            request = requests.read(model, original, args, kwargs)
            ride = self._join(model, request)
        except Exception as error:  # a train_step of the user's may raise anything while traced
            why = (
                str(error) if isinstance(error, Unpackable) else f"{type(error).__name__}: {error}"
            )
            return self._alone(model, original, args, kwargs, why)
        if kwargs.get("verbose"):
            self._desk.say(
                f"verbose: fits of several {self._noun}s train at once, so their progress bars are "
                "not drawn"
            )
        return self._packed(model, request, ride)

    def _alone(
        self,
        model: Any,
        original: Fit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        why: str,
    ) -> Any:
        number = self._worker.outcome.number
        self._desk.say(
            f"{self._noun} {number} and its like train in Keras' own fit, one at a time: {why}"
        )
        given = kwargs.get("callbacks")
        if isinstance(given, (list, tuple)) or (given is None and len(args) < 6):
            kwargs = {**kwargs, "callbacks": [*(given or ()), watched_by(self._worker)]}
        began = time.perf_counter()
        history = original(model, *args, **kwargs)
        seconds = time.perf_counter() - began
        epochs = len(getattr(history, "epoch", ()))
        self._worker.outcome.fits.append(FitRecord(epochs, seconds, None, "fit", why))
        return history

    def _join(self, model: Any, request: FitArguments) -> PackedFit:
        """Builds the model as ``fit`` would, and queues it for a pack."""
        trace.check_packable(model)
        shapes = request.data.batch_shapes(request.batch_size)

        def drawn() -> None:
            # Keras shuffles once more to look at a batch (see tests: it is nowhere written).
            if request.shuffle:
                np.random.permutation(request.data.n)

        keras_private.symbolic_build(model, shapes, drawn)
        model.reset_metrics()
        executor = self._desk.executor_for(request)
        ride = PackedFit(self._desk.number(), self._worker, executor)
        everyone = np.arange(request.data.n, dtype=np.int32)
        executor.submit(
            Job(
                number=ride.number,
                seed=ride.number,
                epochs=request.epochs - request.initial_epoch,
                batch_size=request.batch_size,
                model=model,
                rebuild=lambda: model,
                order=lambda epoch: everyone if ride.order is None else ride.order,
            )
        )
        self._desk.board(ride)
        return ride

    def _packed(self, model: Any, request: FitArguments, ride: PackedFit) -> Any:
        variables = Variables(model)
        callbacks = keras.callbacks.CallbackList(
            list(request.callbacks),
            add_history=True,
            model=model,
            verbose=request.verbose,
            epochs=request.epochs,
            steps=request.steps,
        )
        logs: dict[str, float] = {}
        try:
            model.stop_training = False
            callbacks.on_train_begin()
            for epoch in range(request.initial_epoch, request.epochs):
                callbacks.on_epoch_begin(epoch)
                if request.shuffle:
                    ride.order = np.random.permutation(request.data.n).astype(np.int32)
                state = variables.changed()
                if state is not None:
                    ride.executor.replace(ride.number, state)
                report = self._epoch(ride)
                if request.callbacks or epoch + 1 == request.epochs:
                    assert report.state is not None
                    variables.take(report.state())
                logs = dict(report.logs)
                _validated(callbacks, logs)
                callbacks.on_epoch_end(epoch, logs)
                if _not_a_number(request, logs):
                    model.stop_training = True
                if model.stop_training:
                    break
        finally:
            self._leave(ride)
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
        return model.history

    def _epoch(self, ride: PackedFit) -> EpochReport:
        """Waits until the pack has trained an epoch."""
        ride.report = None
        self._worker.waits_for_epoch = True
        self._worker.wait()
        if ride.error is not None:
            raise ride.error
        assert ride.report is not None
        return ride.report

    def _leave(self, ride: PackedFit) -> None:
        """Gives the slot, or the place in the queue, back."""
        report = ride.report
        self._worker.outcome.fits.append(
            FitRecord(
                ride.epochs,
                ride.seconds,
                report.program if report else None,
                report.plan if report else "",
                None,
            )
        )
        if ride.over:
            return
        ride.over = True
        if self._worker.cancelled:
            return
        if report is None:  # a callback raised before an epoch was trained
            ride.executor.drop(ride.number)
        else:
            self._worker.wait()  # the pack is told before the function goes on


def _validated(callbacks: keras.callbacks.CallbackList, logs: dict[str, float]) -> None:
    """Tells callbacks of a validation, as ``fit`` does."""
    found = {n.removeprefix("val_"): value for n, value in logs.items() if n.startswith("val_")}
    if found:
        callbacks.on_test_begin()
        callbacks.on_test_end(found)


def _not_a_number(request: FitArguments, logs: dict[str, float]) -> bool:
    """Whether a ``TerminateOnNaN`` would have ended this epoch at a batch.

    From there on all batches are alike, so that the end of the epoch will do.
    """
    watched = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in request.callbacks)
    return watched and not math.isfinite(logs.get("loss", 0.0))
