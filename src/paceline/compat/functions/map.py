"""``paceline.map``: calls a function that trains with each configuration, lazily and in order."""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Generic, TypeVar

import numpy as np

from paceline.compat.functions.summary import FitSummary
from paceline.compat.interception import CallOutcome, Engine, FunctionCall, check_concurrent
from paceline.compat.progress import ProgressBar
from paceline.errors import UsageError

T = TypeVar("T")

#: Results that wait until an earlier one is taken, at most.
_MOST = 1024


def map(
    function: Callable[..., T],
    *iterables: Iterable[Any],
    seeds: int | Iterable[int] | None = None,
    concurrent: bool | None = None,
    progress: bool = True,
    notes: Callable[[str], None] | None = None,
) -> OrderedResults[T]:
    """Calls a function with each configuration, and trains the fits of many calls at once.

    Works as Python's ``map``: results come in the order of the configurations, and nothing runs
    before you take the first result. A call that raises does so when you take its result; the
    next results are there nevertheless. Paceline takes configurations ahead of results, up to
    512 at once.

    Each call returns what it returns alone after
    ``keras.utils.set_random_seed(seed); keras.utils.clear_session()``. If the calls share something
    that would change their results, they run one at a time, and a note names it.

    Args:
        function: Builds, compiles and fits a Keras model, and returns anything.
        *iterables: The configurations; with several iterables, as for Python's ``map``.
        seeds: The random seed of each call: an integer, to which the position of the call is added,
            or one integer for each call. None: drawn from Python's ``random``.
        concurrent: Whether calls begin while others train. False: never. True: always. None:
            unless they share something that would change their results.
        progress: Whether a progress bar is shown on stderr.
        notes: Called with each note for you; None: notes are printed on stderr.

    Returns:
        An iterator over the results. ``close()`` ends it early.

    Raises:
        UsageError: An argument cannot work. Nothing was trained.

    Example:
        >>> import paceline
        >>> [value for value in paceline.map(lambda rate: 10 * rate, [1, 2, 3], progress=False)]
        [10, 20, 30]
    """
    if not callable(function):
        raise UsageError(
            f"function must be callable, got {type(function).__name__}. Pass the function first, "
            "and then the configurations."
        )
    if not iterables:
        raise UsageError("iterables are missing. Pass a list of configurations after the function.")
    inputs = [iter(each) for each in iterables]
    n_calls = min((operator.length_hint(each) for each in inputs), default=0)
    bar = ProgressBar(n_calls, show=progress, noun="calls")
    engine = Engine(
        notes=bar.say if notes is None else notes,
        noun="call",
        concurrent=check_concurrent(concurrent),
    )
    calls = CallQueue(function, zip(*inputs, strict=False), _seeds(seeds))
    return OrderedResults(calls, _outcomes(engine, bar, calls, n_calls))


class CallQueue:
    """Makes the calls of ``map``, as the engine asks for them."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Iterator[tuple[Any, ...]],
        seeds: Iterator[int | None],
    ) -> None:
        self._function, self._inputs, self._seeds = function, inputs, seeds
        self.n_begun = self.n_taken = 0  # calls, and results that the user has
        self.error: Exception | None = None  # of the user's iterable, in place of a configuration

    def __iter__(self) -> Iterator[FunctionCall | None]:
        while True:
            if self.n_begun - self.n_taken >= _MOST:
                yield None
                continue
            try:
                arguments = next(self._inputs)
                seed = next(self._seeds)
            except StopIteration:
                return
            except Exception as error:
                self.error = error
                return
            number, self.n_begun = self.n_begun, self.n_begun + 1
            bound = functools.partial(self._function, *arguments)
            yield FunctionCall(number, bound, seed)


class OrderedResults(Iterator[T], Generic[T]):
    """An iterator over the results of calls, in the order of the calls."""

    def __init__(self, calls: CallQueue, outcomes: Generator[CallOutcome, None, None]) -> None:
        self._calls, self._outcomes = calls, outcomes
        self._waiting: dict[int, CallOutcome] = {}  # results that an earlier one goes before
        self._ended_by: BaseException | None = None
        # Also at the end of the process, while the threads of functions still run.
        self._close = weakref.finalize(self, outcomes.close)

    def __iter__(self) -> OrderedResults[T]:
        return self

    def __next__(self) -> T:
        if self._ended_by is not None:
            raise RuntimeError(
                f"map: {type(self._ended_by).__name__} has ended the run. Call paceline.map again."
            ) from self._ended_by
        position = self._calls.n_taken
        while position not in self._waiting:
            try:
                outcome = next(self._outcomes)
            except StopIteration:
                error, self._calls.error = self._calls.error, None
                if error is not None:
                    raise error from None
                raise
            except BaseException as error:
                self._ended_by = error
                raise
            self._waiting[outcome.number] = outcome
        self._calls.n_taken += 1
        outcome = self._waiting.pop(position)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        """Ends the calls that have not ended, and frees their memory."""
        self._close()


def _outcomes(
    engine: Engine, bar: ProgressBar, calls: CallQueue, n_calls: int
) -> Generator[CallOutcome, None, None]:
    """Runs the calls; yields the outcome of each as soon as it has ended."""
    summary = FitSummary()
    with bar, engine, closing(engine.run(calls, n_calls=n_calls or None)) as outcomes:
        for outcome in outcomes:
            summary.add(outcome)
            n_left = max(0, n_calls - calls.n_begun)
            bar.show(summary.n_ended, n_left, summary.text())
            yield outcome


def _seeds(given: Any) -> Iterator[int | None]:
    """The seed of each call, without end; None: drawn at random."""
    if given is None:
        return itertools.repeat(None)
    if _is_integer(given):
        return ((int(given) + position) % 2**32 for position in itertools.count())
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(
            f"seeds must be an integer, integers or None, got {given!r}. Pass one integer, or one "
            "for each configuration."
        )
    return _checked_seeds(given)


def _checked_seeds(given: Iterable[Any]) -> Iterator[int]:
    for position, seed in enumerate(itertools.chain(given, [None])):
        if not _is_integer(seed):
            raise UsageError(
                f"seeds must have one integer for each call, got {seed!r} for call {position}. "
                "Pass as many seeds as configurations, or one integer."
            )
        yield int(seed)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
