"""``PackPoolExecutor``: the form of ``concurrent.futures`` for functions that train."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from paceline.compat.functions.summary import FitSummary
from paceline.compat.interception import Engine, FunctionCall, check_concurrent
from paceline.compat.interception.function_thread import Cancelled
from paceline.compat.progress import say
from paceline.program import keras_private

#: Seconds without a new function after which training begins.
_QUIET = 0.05


class PackPoolExecutor(Executor):
    """Trains the functions that you submit; many of their fits train at once in one program.

    It has the methods of ``concurrent.futures.ThreadPoolExecutor``: ``submit`` returns a
    ``Future``, and ``concurrent.futures.wait`` and ``as_completed`` take it. Each function returns
    what it returns alone after ``keras.utils.set_random_seed(seed)``. Functions that share
    something that would change their results run one at a time, and a note names it.

    Functions run in threads of the executor, and while one runs, the random state and Keras'
    settings of the process are those of the function. So don't build models or draw random numbers
    in your own thread until you have the results. ``paceline.map`` has no such limit.

    Args:
        seed: The first function has this random seed, the next one the seed above it, and so on.
            None: drawn from Python's ``random`` now.
        concurrent: Whether functions begin while others train. False: never. True: always. None:
            unless they share something that would change their results.
        notes: Called with each note for you, and with a summary at the end. None: notes and summary
            are printed on stderr.

    Raises:
        UsageError: ``concurrent`` is not True, False or None.

    Example:
        >>> import paceline
        >>> with paceline.PackPoolExecutor() as executor:
        ...     future = executor.submit(pow, 2, 10)
        >>> future.result()
        1024
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        concurrent: bool | None = None,
        notes: Callable[[str], None] | None = None,
    ) -> None:
        self._say, self._summary = notes or say, FitSummary()
        self._engine = Engine(notes=self._say, concurrent=check_concurrent(concurrent))
        self._seed = random.getrandbits(32) if seed is None else int(seed)
        # One thread, in which the engine runs. At the end of the process Python waits for it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paceline-pool")
        self._queue: deque[_Task] = deque()
        self._lock = threading.Condition()
        self._runs = self._is_shut_down = False
        self._n_submitted = 0
        self._submitted_at = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submits a function; returns a ``Future`` of what ``fn(*args, **kwargs)`` returns.

        Args:
            fn: Builds, compiles and fits a Keras model, and returns anything.
            *args: Arguments of ``fn``.
            **kwargs: Arguments of ``fn``.

        Raises:
            RuntimeError: The executor was shut down.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("submit: the executor was shut down. Make a new one.")
            seed = (self._seed + self._n_submitted) % 2**32
            task = _Task(self._n_submitted, fn, args, kwargs, seed)
            self._n_submitted += 1
            self._submitted_at = time.monotonic()
            self._queue.append(task)
            self._lock.notify_all()
            if not self._runs:
                self._runs = True
                context = contextvars.copy_context()
                self._thread.submit(context.run, self._run, keras_private.settings())
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no further functions, and frees what the executor holds.

        Args:
            wait: Whether to return only when all functions have ended.
            cancel_futures: Whether functions that have not begun are cancelled.
        """
        with self._lock:
            begun, self._is_shut_down = self._is_shut_down, True
            dropped = list(self._queue) if cancel_futures else []
            if cancel_futures:
                self._queue.clear()
            self._lock.notify_all()
            if not begun:
                self._thread.submit(self._close)
        for task in dropped:
            task.future.cancel()
        self._thread.shutdown(wait=wait)

    # -- in the thread of the engine ---------------------------------------------------------------

    def _close(self) -> None:
        self._engine.close()
        if line := self._summary.line("function"):
            self._say(line)

    def _run(self, settings: dict[str, Any]) -> None:
        """Runs functions until none is left; ``settings`` are Keras' in the user's thread."""
        # Keras keeps its settings for each thread.
        keras_private.set_global_state(keras_private.new_global_state(settings))
        running: dict[int, _Task] = {}
        while True:
            with self._lock:
                while self._settles():
                    pass
                n_calls = len(self._queue)
                if not n_calls:
                    self._runs = False
                    return
            calls = self._calls(running)
            try:
                with closing(self._engine.run(calls, n_calls=n_calls, asks_again=True)) as outcomes:
                    for outcome in outcomes:
                        self._summary.add(outcome)
                        running.pop(outcome.number).end(outcome.value, outcome.error)
            except BaseException as error:  # of Paceline itself, or of memory
                for task in running.values():
                    task.future.set_exception(error)
                running.clear()

    def _calls(self, running: dict[int, _Task]) -> Iterator[FunctionCall | None]:
        while True:
            task = self._next()
            if task is None:
                yield None
            elif task.future.set_running_or_notify_cancel():
                running[task.number] = task
                yield FunctionCall(task.number, task, task.seed, task.function)

    def _next(self) -> _Task | None:
        with self._lock:
            while not self._queue and self._settles():
                pass
            return self._queue.popleft() if self._queue else None

    def _settles(self) -> bool:
        """Waits a moment for more functions; False once none has come for a while."""
        left = self._submitted_at + _QUIET - time.monotonic()
        if left <= 0 or self._is_shut_down:
            return False
        self._lock.wait(left)
        return True


@dataclass(eq=False, repr=False)
class _Task:
    """A function that was submitted."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seed: int
    future: Future[Any] = field(default_factory=Future)
    _fatal: BaseException | None = None

    def __call__(self) -> Any:
        try:
            return self.function(*self.args, **self.kwargs)
        except (Exception, Cancelled):
            raise
        except BaseException as error:  # SystemExit, for one: it ends only this function
            self._fatal = error

    def end(self, value: Any, error: BaseException | None) -> None:
        """Sets the result of the future."""
        error = error or self._fatal
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)
