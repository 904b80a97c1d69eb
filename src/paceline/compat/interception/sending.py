"""Sends the fits of one function to the session's own process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.batch_hooks import BatchHooks
from paceline.compat.interception.fit_arguments import FitArguments, looks_first
from paceline.compat.interception.fit_scheduler import FitScheduler, PackedFit
from paceline.compat.interception.fit_server import SentFit
from paceline.compat.interception.function_thread import FunctionThread
from paceline.compat.interception.model_variables import ModelVariables
from paceline.executor.session.models import SentModel
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.numbers import number_settings


class FitSender:
    """Sends the fits of one function, in the function's thread.

    On JAX, ``fit`` draws the orders of examples from ``np.random``. On other backends it draws
    nothing there, and what a function draws itself must stay as it is. So the orders are drawn from
    ``random``, a copy of that state.
    """

    def __init__(self, thread: FunctionThread, scheduler: FitScheduler) -> None:
        self._thread, self._scheduler = thread, scheduler
        self.random = np.random.RandomState()
        self._seen: Any = None  # the function's state when it was copied
        self._start: Any = None  # of ``random``, before the first order of the present fit

    def send(self, model: Any, arguments: FitArguments) -> PackedFit:
        """Sends the model to the session's process, and returns once a pack there will train it.

        Raises Unpackable if it cannot train there.
        """
        _check_steps(model)
        looks = looks_first(model)
        built = all(layer.built for layer in keras_private.all_layers(model))
        shapes = arguments.data.batch_shapes(arguments.batch_size)
        if not built:  # here, its weights are drawn from the function's own random state
            keras_private.symbolic_build(model, shapes)
        else:  # callbacks may look up metrics, as EarlyStopping does
            with suppress(Exception):  # a step of the user's, which only the process must run
                if not keras_private.build_metrics(model, shapes) and arguments.callbacks:
                    keras_private.symbolic_build(model, shapes)
        if arguments.shuffle:
            self._copy_random(arguments.data.n if looks else 0)
        packed_fit = PackedFit(self._scheduler.number(), self._thread, None)
        packed_fit.hooks = BatchHooks(self._thread) if arguments.by_batch else None
        packed_fit.fold = arguments.read_fold()
        packed_fit.take_orders(arguments, self.random)
        packed_fit.sent = SentFit(
            number=packed_fit.number,
            executor=0,
            model=SentModel.of(model),
            epochs=arguments.epochs - arguments.initial_epoch,
            batch_size=arguments.batch_size,
            watched=arguments.watched,
            expected=1,
            numbers=number_settings(),
        )
        self.send_again(packed_fit, model, arguments)
        return packed_fit

    def _copy_random(self, n_looked_at: int) -> None:
        """Copies the function's state, if the function has drawn since the last copy."""
        now: Any = np.random.get_state()
        seen = now[1].tobytes(), now[2]
        if seen != self._seen:
            self._seen = seen
            self.random.set_state(now)
        if n_looked_at:  # on JAX, fit would look at a batch first, because something is not built
            self.random.permutation(n_looked_at)
        self._start = self.random.get_state()

    def _orders(self, packed_fit: PackedFit, arguments: FitArguments) -> list[Any] | None:
        """The orders of the next epoch, and of those before it that are trained again."""
        if packed_fit.order is None:
            return None
        random, n_again = np.random.RandomState(), packed_fit.epochs - packed_fit.n_before
        random.set_state(self._start or random.get_state())
        return [*(arguments.next_order(random) for _ in range(n_again)), packed_fit.order]

    def send_again(
        self,
        packed_fit: PackedFit,
        model: Any,
        arguments: FitArguments,
        variables: ModelVariables | None = None,
    ) -> None:
        """Has the process take a fit in, and another one if that dies.

        ``variables`` are those of a fit that has begun. It continues from there if callbacks have
        seen its epochs. Else it starts over, which nobody sees.

        Raises Unpackable if the fit cannot train there.
        """
        sent = packed_fit.sent
        assert sent is not None
        while True:
            executor = packed_fit.executor = self._scheduler.executor_for(arguments, model)
            packed_fit.error, packed_fit.over, packed_fit.died = None, False, False
            packed_fit.n_before = packed_fit.epochs if sent.watched else 0
            going_on = variables is not None and packed_fit.n_before > 0
            executor.submit(
                replace(
                    sent,
                    executor=executor.number,
                    expected=executor.demand.expected,
                    epochs=sent.epochs - packed_fit.n_before,
                    orders=self._orders(packed_fit, arguments),
                    fold=packed_fit.fold,
                    values=variables.values if variables is not None and going_on else None,
                )
            )
            self._scheduler.add(packed_fit, model, arguments.callbacks)
            self._thread.waits_for_epoch = True
            self._thread.wait()
            if packed_fit.error is None:
                return
            if not packed_fit.died:
                raise packed_fit.error


def _check_steps(model: Any) -> None:
    """Refuses a model with a step of its own that JAX would call with other arguments."""
    for name in ("train_step", "test_step"):
        step = getattr(type(model), name, None)
        code = getattr(step, "__code__", None)
        if code is None or step is getattr(keras.Model, name, None):
            continue
        if code.co_argcount == 2:  # JAX's is given the state, too
            raise Unpackable(
                f"line {code.co_firstlineno} of {code.co_filename} defines {name}(self, data), "
                f"which is written for {keras.backend.backend()}. Override compute_loss instead, "
                "which works on every backend"
            )
