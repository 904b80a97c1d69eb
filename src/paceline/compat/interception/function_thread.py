"""A function in a thread of its own, which runs only while it holds the baton."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

import keras

from paceline.compat.interception.call import Call, Outcome
from paceline.compat.interception.fit_patch import Handler, handled_by
from paceline.compat.interception.process_state import ProcessState
from paceline.program import keras_private


class Cancelled(BaseException):
    """The engine has ended: unwinds a function that waits in ``fit``."""


class FunctionThread:
    """One call on its way.

    The engine's thread calls ``go`` and waits until the baton is back; the worker's thread hands it
    back in ``wait`` and at the function's end.

    Args:
        call: What to run.
        seed: For ``keras.utils.set_random_seed``.

    Attributes:
        outcome: What has come of it so far.
        handler: Takes its fits; to be set before it runs.
        ended: The function has returned or raised.
        fatal: What it raised, where that is no ordinary exception.
        cancelled: It is to unwind.
        waits_for_epoch: It must not go on before its pack has trained.
    """

    def __init__(self, call: Call, seed: int) -> None:
        self._seed = seed
        self.outcome = Outcome(call)
        self.handler: Handler | None = None
        self.ended = self.cancelled = self.waits_for_epoch = False
        self.fatal: BaseException | None = None
        self._settings = keras_private.settings()  # the user's, in the engine's thread
        self._surroundings: ProcessState | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"paceline-call-{call.number}", daemon=True
        )

    # -- in the engine's thread --------------------------------------------------------------------

    def go(self) -> None:
        """Lets the function run until it waits or ends."""
        outside = ProcessState.now()
        began = time.perf_counter()
        try:
            if self._surroundings is None:
                self.outcome.began = time.time()
                self._thread.start()
            else:
                self._surroundings.restore()
                self._go.release()
            try:
                self._back.acquire()
            except BaseException:  # an interrupt: the function still runs
                self.cancelled = True
                self._back.acquire()
                raise
        finally:
            self.outcome.seconds += time.perf_counter() - began
            self._surroundings = ProcessState.now()
            outside.restore()

    def cancel(self) -> None:
        """Unwinds the function, however often it catches that."""
        self.cancelled = True
        while self._surroundings is not None and not self.ended:
            self.go()

    # -- in the worker's thread --------------------------------------------------------------------

    def wait(self) -> None:
        """Hands the baton back; returns when it is this function's turn again."""
        if not self.cancelled:
            self._back.release()
            self._go.acquire()
        self.check()

    def check(self) -> None:
        """Unwinds the function where it is cancelled."""
        if self.cancelled:
            raise Cancelled

    def _run(self) -> None:
        outcome = self.outcome
        try:
            keras_private.set_global_state(keras_private.new_global_state(self._settings))
            keras.utils.set_random_seed(self._seed)
            assert self.handler is not None
            with handled_by(self.handler):
                outcome.value = outcome.call.function()
        except Cancelled:
            pass
        except Exception as error:
            outcome.error = error
        except BaseException as error:  # KeyboardInterrupt, SystemExit: the engine raises it
            self.fatal = error
        finally:
            outcome.ended = time.time()
            self.ended = True
            self._back.release()


def watched_by(worker: FunctionThread) -> Any:
    """A callback for Keras' own ``fit``, which cannot wait: it ends with the engine."""
    return _Watch(worker)


class _Watch(keras.callbacks.Callback):
    def __init__(self, worker: FunctionThread) -> None:
        super().__init__()
        self._worker = worker

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._worker.check()
