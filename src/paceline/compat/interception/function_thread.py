"""A function in a thread of its own; the thread runs only while it holds the baton."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from paceline.compat.interception.call import CallOutcome, FunctionCall
from paceline.compat.interception.fit_patch import FitInterceptor, handled_by
from paceline.compat.interception.sharing.gates import Gates
from paceline.compat.interception.sharing.process_state import ProcessState
from paceline.executor.batch_checks import batches_checked
from paceline.program import keras_private
from paceline.program.foreign.tensorflow import accept_tensorflow


class Cancelled(BaseException):
    """Raised inside ``fit`` to unwind a function whose engine has ended.

    Not an ``Exception``, so that the user's handlers do not catch it.
    """


class FunctionThread:
    """A thread that runs the function of one call.

    The engine's thread calls ``go`` and waits until it has the baton again. This thread hands the
    baton back in ``wait`` and at the end of the function. ``seed`` is for
    ``keras.utils.set_random_seed``.
    """

    def __init__(self, call: FunctionCall, seed: int) -> None:
        self._seed = seed
        self.outcome = CallOutcome(call)  # filled in as the function runs
        self.fit: FitInterceptor | None = None  # to be set before the thread runs
        self.ended = False  # whether the function has returned or raised
        self.cancelled = False  # whether it is to be unwound
        self.waits_for_epoch = False  # whether it waits until its pack has trained an epoch
        # What it raised if that isn't an ``Exception``, such as KeyboardInterrupt.
        self.fatal: BaseException | None = None
        # The function whose end this one waits for, before its fit begins.
        self.waits_for: FunctionThread | None = None
        # Lines before which it must call ``at_gate``, once; to be set before the thread runs.
        self.gates: Gates = {}
        self.at_gate: Callable[[FunctionThread], None] | None = None
        self.passed = False  # whether it has
        self.n_turns = 0  # how often it has had the baton
        self._settings = keras_private.settings()  # read here, in the engine's thread
        self._process_state: ProcessState | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"paceline-call-{call.number}", daemon=True
        )

    # -- in the engine's thread --------------------------------------------------------------------

    def go(self) -> None:
        """Lets the function run until it waits or ends."""
        outside = ProcessState.now()
        self.n_turns += 1
        began = time.perf_counter()
        try:
            if self._process_state is None:
                self.outcome.began = time.time()
                self._thread.start()
            else:
                self._process_state.restore()
                self._go.release()
            try:
                self._back.acquire()
            except BaseException:  # Ctrl-C in the engine's thread, while the function still runs
                self.cancelled = True
                self._back.acquire()
                raise
        finally:
            self.outcome.seconds += time.perf_counter() - began
            self._process_state = ProcessState.now()
            outside.restore()

    def cancel(self) -> None:
        """Unwinds the function, as often as it catches ``Cancelled`` and continues."""
        self.cancelled = True
        while self._process_state is not None and not self.ended:
            self.go()

    # -- in this thread ----------------------------------------------------------------------------

    def wait(self) -> None:
        """Hands the baton back; returns when this thread has it again, or raises as ``check``."""
        if not self.cancelled:
            self._back.release()
            self._go.acquire()
        self.check()

    def wait_for(self, other: FunctionThread) -> None:
        """Hands the baton back until another function has ended."""
        self.waits_for = other
        try:
            self.wait()
        finally:
            self.waits_for = None

    def check(self) -> None:
        """Unwinds the function, by ``Cancelled``, if it was cancelled."""
        if self.cancelled:
            raise Cancelled

    @contextmanager
    def untraced(self) -> Iterator[None]:
        """A block without gates, in which Python runs twice as fast as with them."""
        traced = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(traced)

    def _run(self) -> None:
        outcome = self.outcome
        try:
            keras_private.set_global_state(keras_private.new_global_state(self._settings))
            with keras_private.no_tensorflow():
                keras.utils.set_random_seed(self._seed)
            accept_tensorflow()
            assert self.fit is not None
            if self.gates:
                sys.settrace(self._entered)
            with batches_checked(), handled_by(self.fit):
                outcome.value = outcome.call.function()
        except Cancelled:
            pass
        except Exception as error:
            outcome.error = error
        except BaseException as error:  # KeyboardInterrupt, SystemExit: raised by the engine again
            self.fatal = error
        finally:
            sys.settrace(None)
            outcome.ended = time.time()
            self.ended = True
            self._back.release()

    # Python calls these two for each function that this thread calls, and each line of some.

    def _entered(self, frame: Any, _: str, __: Any) -> Any:
        return self._at_line if frame.f_code in self.gates else None

    def _at_line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno in self.gates[frame.f_code]:
            sys.settrace(None)
            assert self.at_gate is not None
            self.at_gate(self)
            self.passed = True
            return None
        return self._at_line


def can_trace() -> bool:
    """Whether no debugger traces lines, for which Python has one place."""
    return sys.gettrace() is None and threading.gettrace() is None


def watched_by(thread: FunctionThread) -> Any:
    """Returns a callback that ends Keras' own ``fit`` after an epoch if the engine has ended."""
    return _CancelWatch(thread)


class _CancelWatch(keras.callbacks.Callback):
    """Checks after each epoch whether the function is to be unwound."""

    def __init__(self, thread: FunctionThread) -> None:
        super().__init__()
        self._thread = thread

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._thread.check()
