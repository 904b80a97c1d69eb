"""The fits of one function: Keras' loop over epochs, with steps that a pack does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from paceline.compat.interception import fit_arguments
from paceline.compat.interception.batch_hooks import BatchHooks
from paceline.compat.interception.call import FitRecord
from paceline.compat.interception.data_sets import draws_orders
from paceline.compat.interception.executor_pool import job_of, prepare_model
from paceline.compat.interception.fit_arguments import FitArguments
from paceline.compat.interception.fit_patch import Fit
from paceline.compat.interception.fit_scheduler import FitScheduler, PackedFit
from paceline.compat.interception.function_thread import FunctionThread, watched_by
from paceline.compat.interception.model_variables import ModelVariables
from paceline.compat.interception.sharing.claims import callbacks_of
from paceline.errors import DataError, TrialCrashError
from paceline.executor.base import EpochReport
from paceline.pack.callbacks.packable import names_model
from paceline.pack.callbacks.slot_model import FROZE, check_attributes, plain_attributes
from paceline.program.canonical import Unpackable

if TYPE_CHECKING:
    from paceline.compat.interception.sending import FitSender


class FitHandler:
    """Handles the fits of one function, in its thread; ``noun`` is what notes call the function."""

    def __init__(self, thread: FunctionThread, scheduler: FitScheduler, noun: str) -> None:
        self._thread, self._scheduler, self._noun = thread, scheduler, noun
        # Sends fits to the session's own process; None until the first one, and on JAX.
        self._sender: FitSender | None = None

    def fit(self, model: Any, original: Fit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what ``model.fit(*args, **kwargs)`` would return."""
        with self._thread.untraced():
            return self._fit(model, original, args, kwargs)

    def _fit(self, model: Any, original: Fit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._thread.check()
        x, held = args[0] if args else kwargs.get("x"), callbacks_of(args, kwargs)
        sets = x, args[7] if len(args) > 7 else kwargs.get("validation_data")
        self._before(model, held, sets)
        arguments = None
        try:
            if self._scheduler.why_no_packs is not None:
                raise Unpackable(self._scheduler.why_no_packs)
            arguments = fit_arguments.read(model, original, args, kwargs)
            if arguments.reads:  # which may have shown what the fit holds
                self._before(model, held, sets)
            packed_fit = self._join(model, arguments)
        # As of labels beyond the classes, of which Keras on JAX would say nothing, or of a fit that
        # would end this process, too.
        except (DataError, TrialCrashError):
            raise
        except Exception as error:  # while it is traced, a user's train_step may raise anything
            why = (
                str(error) if isinstance(error, Unpackable) else f"{type(error).__name__}: {error}"
            )
            unread = getattr(error, "unread", None)
            if arguments is not None and arguments.passes is not None:
                unread = arguments.passes.unread()
            if unread is not None:
                args, kwargs = args[1:], {**kwargs, "x": unread}
            return self._alone(model, original, args, kwargs, why)
        if kwargs.get("verbose"):
            self._scheduler.say(
                f"verbose: fits of several {self._noun}s train at once, so their progress bars are "
                "not drawn"
            )
        for callback in arguments.callbacks:
            if self._sender is None and names_model(callback, model):
                self._scheduler.say(
                    f"callbacks: {type(callback).__name__} reaches its model by a name, not as "
                    "self.model. In a pack it reads and writes the variables before and after each "
                    "batch. Keras' own fit on JAX updates them for self.model only, so results may "
                    "differ"
                )
        try:
            return self._packed(model, arguments, packed_fit)
        # The process that trained it has died too often, or a callback did what fit alone can.
        except Unpackable as error:
            if arguments.callbacks:
                raise
            if packed_fit.epochs > 0 and arguments.reads:
                # The model and its data are those after these epochs: no fit could start over.
                raise DataError(
                    f"fit: {error}, which shows after {packed_fit.epochs} epochs. Pass arrays, or "
                    "data that are the same in each epoch"
                ) from error
            return self._alone(model, original, args, kwargs, str(error))

    def _before(self, model: Any, callbacks: list[Any], sets: Iterable[Any]) -> None:
        held = [*callbacks, *filter(draws_orders, sets)]
        self._scheduler.before_fit(self._thread, model, held)

    def _alone(
        self,
        model: Any,
        original: Fit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        why: str,
    ) -> Any:
        from paceline.tuner.search.progress import unpacked_backend  # half of what a loop imports

        like = f"{self._noun} {self._thread.outcome.number} and its like"
        self._scheduler.say(
            f"{like} train in Keras' own fit, one at a time: {why}"
            if self._scheduler.why_no_packs is None
            else str(unpacked_backend(self._scheduler.why_no_packs))
        )
        given = kwargs.get("callbacks")
        if isinstance(given, (list, tuple)) or (given is None and len(args) < 6):
            kwargs = {**kwargs, "callbacks": [*(given or ()), watched_by(self._thread)]}
        began = time.perf_counter()
        history = original(model, *args, **kwargs)
        seconds = time.perf_counter() - began
        epochs = len(getattr(history, "epoch", ()))
        self._thread.outcome.fits.append(FitRecord(epochs, seconds, None, "fit", why))
        return history

    def _join(self, model: Any, arguments: FitArguments) -> PackedFit:
        """Builds the model as ``fit`` would, and queues it for a pack."""
        if self._scheduler.sends:
            from paceline.compat.interception.sending import FitSender  # not in sessions on JAX

            self._sender = self._sender or FitSender(self._thread, self._scheduler)
            return self._sender.send(model, arguments)
        shapes = arguments.data.batch_shapes(arguments.batch_size)

        def drawn() -> None:
            # To look at a batch, Keras' fit shuffles once before the first epoch. That is not
            # documented; a test checks it.
            if arguments.shuffle:
                np.random.permutation(arguments.data.n)

        prepare_model(model, shapes, drawn)
        executor = self._scheduler.executor_for(arguments, model)
        packed_fit = PackedFit(self._scheduler.number(), self._thread, executor)
        everyone = np.arange(arguments.data.n, dtype=np.int32)
        epochs = arguments.epochs - arguments.initial_epoch

        def order(epoch: int) -> np.ndarray:
            return everyone if packed_fit.order is None else packed_fit.order

        packed_fit.hooks = BatchHooks(self._thread) if arguments.by_batch else None
        packed_fit.fold = arguments.read_fold()
        more = arguments.batch_size, order, packed_fit.hooks, packed_fit.fold
        executor.submit(job_of(packed_fit.number, model, epochs, *more))
        self._scheduler.add(packed_fit, model, arguments.callbacks)
        return packed_fit

    def _packed(self, model: Any, arguments: FitArguments, packed_fit: PackedFit) -> Any:
        variables = ModelVariables(model)
        built_with = plain_attributes(model)
        logs: dict[str, float] = {}
        try:
            callbacks = keras.callbacks.CallbackList(
                list(arguments.callbacks),
                add_history=True,
                model=model,
                verbose=arguments.verbose,
                epochs=arguments.epochs,
                steps=arguments.steps,
            )
            model.stop_training = False
            if packed_fit.hooks is not None:
                packed_fit.hooks.begin(model, callbacks, built_with)
            callbacks.on_train_begin()
            for epoch in range(arguments.initial_epoch, arguments.epochs):
                callbacks.on_epoch_begin(epoch)
                if epoch == arguments.initial_epoch:  # fit traces its step after this
                    check_attributes(built_with, model)
                if self._sender is None:
                    packed_fit.take_orders(arguments, np.random)
                elif epoch > arguments.initial_epoch:  # the first orders were sent with the fit
                    packed_fit.take_orders(arguments, self._sender.random)
                    if packed_fit.order is not None or packed_fit.fold is not None:
                        packed_fit.executor.reorder(
                            packed_fit.number, packed_fit.order, packed_fit.fold
                        )
                state = variables.changed() if arguments.callbacks else None
                if state is not None:
                    packed_fit.executor.replace(packed_fit.number, state)
                report = self._epoch(packed_fit)
                while report is None:
                    assert self._sender is not None
                    if packed_fit.hooks is not None and packed_fit.hooks.called:
                        raise RuntimeError(
                            f"{packed_fit.error} between two batches, and callbacks cannot take "
                            "back what they did before. Call fit again, with new callbacks"
                        )
                    self._sender.send_again(packed_fit, model, arguments, variables)
                    report = self._epoch(packed_fit)
                if arguments.watched or epoch + 1 == arguments.epochs:
                    assert report.state is not None
                    variables.take(report.state())
                if packed_fit.hooks is not None:
                    packed_fit.hooks.check()
                    if packed_fit.hooks.froze:
                        self._scheduler.say(FROZE)
                logs = dict(report.logs)
                _validated(callbacks, logs)
                callbacks.on_epoch_end(epoch, logs)
                if _not_a_number(arguments, logs):
                    model.stop_training = True
                if model.stop_training:
                    break
        finally:
            self._leave(packed_fit)
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
        return model.history

    def _epoch(self, packed_fit: PackedFit) -> EpochReport | None:
        """Waits until the pack has trained an epoch; None: the process that trains it has died."""
        packed_fit.report = None
        self._thread.waits_for_epoch = True
        self._thread.wait()
        # A fit that a callback calls meanwhile is Keras' own; see ``fit_patch``.
        while packed_fit.hooks is not None and packed_fit.hooks.serve():
            self._thread.wait()
        if packed_fit.died:
            return None
        if packed_fit.error is not None:
            raise packed_fit.error
        assert packed_fit.report is not None
        return packed_fit.report

    def _leave(self, packed_fit: PackedFit) -> None:
        """Ends the fit: frees its slot, or its place in the executor's queue."""
        report = packed_fit.report
        self._thread.outcome.fits.append(
            FitRecord(
                packed_fit.epochs,
                packed_fit.seconds,
                report.program if report else None,
                report.plan if report else "",
                None,
            )
        )
        if packed_fit.over:
            return
        packed_fit.over = True
        if self._thread.cancelled:
            return
        if report is None:  # a callback raised before the first epoch was trained
            packed_fit.executor.drop(packed_fit.number)
        else:
            self._thread.wait()  # the pack must free the slot before the function continues


def _validated(callbacks: keras.callbacks.CallbackList, logs: dict[str, float]) -> None:
    """Calls the validation hooks of callbacks, as ``fit`` does."""
    found = {n.removeprefix("val_"): value for n, value in logs.items() if n.startswith("val_")}
    if found:
        callbacks.on_test_begin()
        callbacks.on_test_end(found)


def _not_a_number(arguments: FitArguments, logs: dict[str, float]) -> bool:
    """Whether a ``TerminateOnNaN`` would have stopped the fit at a batch of this epoch.

    Once the loss is NaN it stays NaN, so stopping at the end of the epoch gives the same weights.
    """
    watched = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in arguments.callbacks)
    return watched and not math.isfinite(logs.get("loss", 0.0))
