"""The engine: who holds the baton, and when packs train."""

from __future__ import annotations

import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from paceline.compat.interception.call import Call, Outcome
from paceline.compat.interception.executor_pool import Executors
from paceline.compat.interception.fit_arguments import FitArguments
from paceline.compat.interception.fit_patch import intercepted
from paceline.compat.interception.function_thread import FunctionThread
from paceline.compat.interception.packed_fit import Fits, PackedFit
from paceline.executor.base import Answer, EpochReport, LateAnswer, PackOptions
from paceline.executor.local import LocalExecutor
from paceline.executor.process import search_process

#: Functions under way at once, at most: each has a thread and a model.
_MOST = 512


class Engine:
    """Runs functions so that their fits train together; see the package's docstring.

    Data and compiled programs stay for the next ``run`` until the engine is closed.

    Args:
        slots: Fits that train at once in a pack, or "auto".
        plan: "auto", "stacked", "mapped" or "sequential".
        mesh: From ``paceline.pack.mesh.check_mesh``; None: all accelerators, or one CPU.
        notes: Told what the user may want to know, each text once.
        noun: What to call a function in notes.

    Attributes:
        executors: One for each set of data at hand.
    """

    def __init__(
        self,
        *,
        slots: int | str = "auto",
        plan: str = "auto",
        mesh: tuple[int, int | None] | None = None,
        notes: Callable[[str], None] | None = None,
        noun: str = "function",
    ) -> None:
        self.executors = Executors(self.say, PackOptions(slots, plan, mesh))
        self._notes, self._noun = notes, noun
        self._said: set[str] = set()
        self._numbers = itertools.count()
        self._source: Iterator[Call | None] = iter(())
        self._more = False  # the source may have calls
        self._held = False  # ... but not before another outcome is known
        self._left: int | None = None  # calls still in the source, where that is known
        self._workers: set[FunctionThread] = set()  # under way
        self._ready: deque[FunctionThread] = deque()  # of those, they can go on
        self._rides: dict[int, PackedFit] = {}
        self._ended: deque[Outcome] = deque()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Unwinds what is under way, and drops data and programs."""
        self._cancel()
        self.executors.close()

    def run(self, calls: Iterable[Call | None], *, n_calls: int | None = None) -> Iterator[Outcome]:
        """Runs functions; yields what came of each as soon as it has ended.

        A function that raises has an outcome with that error; the others go on. While the caller
        handles an outcome, nothing runs, and ``keras.Model.fit`` in its thread is Keras' own. When
        the generator is closed, functions under way are unwound where they wait.

        Args:
            calls: Asked for the next one whenever there is room. None instead of a call says: none
                before another outcome is known (and, where nothing is under way, that was all).
            n_calls: How many there will be, at most, where ``len(calls)`` does not tell.
        """
        if self._workers:
            raise RuntimeError("engine: a run is under way; end or close it first.")
        n_calls = n_calls or operator.length_hint(calls) or None
        self._source, self._more, self._held, self._left = iter(calls), True, False, n_calls
        # Functions have their random state apart: ``Surroundings``.
        with search_process(random_state=False, also=[intercepted()]), ExitStack() as stack:
            stack.callback(self._cancel)
            while self._round():
                while self._ended:
                    self._held = False
                    yield self._ended.popleft()

    def program_counts(self) -> dict[str, int]:
        """distinct: programs of the data at hand; roles: of them, train and validate steps."""
        counts = [executor.program_counts() for executor in self.executors]
        return {
            "distinct": sum(count["distinct"] for count in counts),
            "roles": sum(count["compiled"] + count["from_cache"] for count in counts),
        }

    # -- a round -----------------------------------------------------------------------------------

    def _round(self) -> bool:
        """Runs functions until they wait, then trains an epoch; False when all have ended."""
        while self._step(self._hungry):
            if self._ended:
                return True
        busy = [executor for executor in self.executors if executor.busy]
        for executor in busy:
            if executor.busy:
                executor.demand.all_asked = not self._more and not self._ready
                executor.advance(self._report, self._meanwhile, self._failed)
        return bool(self._ended or self._workers)

    def _step(self, may_begin: Callable[[], bool]) -> bool:
        """Lets one function run; False when none can."""
        if self._ready:
            self._go(self._ready.popleft())
            return True
        if len(self._workers) >= _MOST or not may_begin():
            return False
        call = self._next()
        if call is None:
            return False
        seed = random.getrandbits(32) if call.seed is None else call.seed
        worker = FunctionThread(call, seed)
        worker.handler = Fits(worker, self, self._noun)
        self._workers.add(worker)
        self._go(worker)
        return True

    def _next(self) -> Call | None:
        if not self._more or self._held:
            return None
        try:
            call = next(self._source)
        except StopIteration:
            self._more = False
            return None
        self._held = call is None
        if call is not None and self._left is not None:
            self._left = max(0, self._left - 1)
        return call

    def _hungry(self) -> bool:
        """Whether training should wait for more fits: slots would stay empty."""
        busy = [executor for executor in self.executors if executor.busy]
        if len(busy) > 1 and len(self._rides) >= 4 * max(e.max_slots for e in busy):
            return False
        return all(executor.demand.hungry for executor in busy)

    def _meanwhile(self) -> bool:
        """While the device works."""
        return self._step(lambda: all(e.demand.room for e in self.executors if e.busy))

    def _go(self, worker: FunctionThread) -> None:
        worker.waits_for_epoch = False
        worker.go()
        if worker.ended:
            self._workers.discard(worker)
            if worker.fatal is not None:
                raise worker.fatal
            worker.outcome.seconds += sum(f.seconds for f in worker.outcome.fits if f.program)
            self._ended.append(worker.outcome)
        elif not worker.waits_for_epoch:
            self._ready.append(worker)

    def _cancel(self) -> None:
        workers, self._workers = self._workers, set()
        for worker in workers:
            worker.cancel()
        if self._rides:
            self.executors.close()  # their slots and queues are full of what is gone
        self._rides.clear()
        self._ready.clear()
        self._ended.clear()

    # -- what executors say ------------------------------------------------------------------------

    def _report(self, report: EpochReport) -> LateAnswer:
        ride = self._rides[report.number]
        ride.seconds += report.seconds
        ride.epochs = report.epoch
        return lambda: self._settle(ride, report)

    def _settle(self, ride: PackedFit, report: EpochReport) -> Answer:
        """Lets the function see the epoch, and its callbacks decide."""
        ride.report = report
        self._go(ride.worker)
        if not ride.over:
            return "continue"
        self._rides.pop(ride.number, None)
        return "stop"

    def _failed(self, number: int, error: BaseException) -> None:
        ride = self._rides.pop(number)
        ride.error, ride.over = error, True
        self._ready.append(ride.worker)

    # -- what fits ask for (``fits.Desk``) ---------------------------------------------------------

    def executor_for(self, request: FitArguments) -> LocalExecutor:
        """The executor that has the request's data."""
        executor = self.executors.of(request)
        executor.demand.expected = executor.waiting + 1 + (self._left or 0)
        return executor

    def number(self) -> int:
        """A number that no ride has had."""
        return next(self._numbers)

    def board(self, ride: PackedFit) -> None:
        """A ride that its executor has taken in."""
        self._rides[ride.number] = ride

    def say(self, text: str) -> None:
        """Tells the user something, once."""
        key = text.partition(": ")[2] or text
        if self._notes is not None and key not in self._said:
            self._said.add(key)
            self._notes(text)
