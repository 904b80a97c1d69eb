"""The engine: decides which thread holds the baton, and when packs train."""

from __future__ import annotations

import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import keras

from paceline.compat.interception.call import CallOutcome, FunctionCall
from paceline.compat.interception.executor_pool import ExecutorPool
from paceline.compat.interception.fit_arguments import FitArguments
from paceline.compat.interception.fit_patch import intercepted, is_intercepted
from paceline.compat.interception.fit_scheduler import PackedFit
from paceline.compat.interception.function_thread import FunctionThread
from paceline.compat.interception.packed_fit import FitHandler
from paceline.compat.interception.shared_steps import steps_shared
from paceline.compat.interception.turns import ConcurrencyPolicy
from paceline.executor.base import Answer, EpochReport, LateAnswer, PackOptions
from paceline.executor.process import search_process
from paceline.executor.tf_replicas import leave_memory_to_packs
from paceline.program.canonical import Unpackable
from paceline.program.compilation_cache import persistent_cache

if TYPE_CHECKING:
    from paceline.compat.interception.batch_hooks import SentSlot
    from paceline.compat.interception.own_process import ProcessPool

#: Functions that run at the same time, at most. Each needs a thread and the memory of a model.
_MOST = 512
#: Functions that wait for the end of others, at most; each holds a model.
_MOST_PARKED = 64


class Engine:
    """Runs functions so that their fits train together; the docstring of the package says how.

    Data and compiled programs are kept for the next ``run`` until the engine is closed.
    """

    def __init__(
        self,
        *,
        slots: int | str = "auto",  # fits that train at once in a pack
        plan: str = "auto",
        mesh: tuple[int, int | None] | None = None,  # from ``paceline.pack.mesh.check_mesh``
        notes: Callable[[str], None] | None = None,  # called with each text for the user once
        noun: str = "function",  # what notes call a function, such as "trial"
        # Whether functions begin while others run. None: unless they share something that would
        # change their results, and a note says what (``turns.py``).
        concurrent: bool | None = None,
    ) -> None:
        options = PackOptions(slots, plan, mesh)
        # One executor for each set of data that fits train on, here or in the session's process.
        self.executors: ExecutorPool | ProcessPool = ExecutorPool(self.say, options)
        # Why packs train neither here nor there; None: they do.
        self.why_no_packs: str | None = None
        self.sends = keras.backend.backend() != "jax"  # whether fits train there
        if self.sends:
            from paceline.compat.interception.own_process import ProcessPool
            from paceline.tuner.search.own_process import why_in_session

            self.executors = ProcessPool(
                *(self.say, options, self._submitted, self._died, self._between)
            )
            self.why_no_packs = why_in_session({})
        self._notes, self._noun = notes, noun
        together = self.why_no_packs is None
        self._turns = ConcurrencyPolicy(concurrent, self.say, noun, together=together)
        self._said: set[str] = set()
        self._looks = True  # whether the function of each call is looked at
        self._numbers = itertools.count()
        self._source: Iterator[FunctionCall | None] = iter(())
        self._more = False  # whether the source may have further calls
        self._held = False  # whether the source has none before another outcome is known
        self._asks_again = False  # whether it is asked again after the next epoch even then
        self._next_call: FunctionCall | None = (
            None  # taken from the source, to begin when none runs
        )
        self._joined = False  # whether the fits that waited first were looked at for several widths
        self._left: int | None = None  # calls that are left in the source; None if unknown
        self._threads: dict[FunctionThread, None] = {}  # the functions that run, in order
        self._unreported: list[FunctionThread] = []  # that have ended, in this round
        self._ready: deque[FunctionThread] = deque()  # threads that do not wait for an epoch
        self._parked: list[FunctionThread] = []  # threads that wait until another has ended
        self._packed_fits: dict[int, PackedFit] = {}
        self._ended: deque[CallOutcome] = deque()
        # Else TensorFlow takes all of a GPU when it first touches it.
        leave_memory_to_packs(self.say)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Unwinds the functions that run, and drops data and programs."""
        self._cancel()
        # Executors write what they have learnt of models beside the compiled programs, under a key
        # that holds JAX's settings: those of a search.
        with persistent_cache():
            self.executors.close()

    def look_at(self, roots: Mapping[str, Any], entries: Iterable[str] = ("__call__",)) -> None:
        """Looks at the user's code, where the functions of calls do not show it themselves.

        ``roots``: label -> function that calls run, or object that it is given, of which methods
        called ``entries`` are called.
        """
        self._turns.look_at(roots, entries)
        self._looks = False

    def run(
        self,
        calls: Iterable[FunctionCall | None],
        *,
        n_calls: int | None = None,
        asks_again: bool = False,
    ) -> Generator[CallOutcome, None, None]:
        """Runs functions, and yields the outcome of each as soon as the function has ended.

        A function that raises has an outcome with that error; the other functions continue. While
        the caller handles an outcome, no function runs, and ``keras.Model.fit`` in the caller's
        thread is Keras' own. When the generator is closed, running functions are unwound where they
        wait.

        The engine takes the next call whenever there is room. None in place of a call: the next
        call depends on an outcome. If no function runs, None ends the run.
        ``n_calls`` is the number of calls at most, for an iterable whose length is unknown.
        ``asks_again``: a None holds until the next epoch, because calls come from elsewhere too.
        """
        if self._threads:
            raise RuntimeError("engine: another run has not ended. End or close it first.")
        n_calls = n_calls or operator.length_hint(calls) or None
        self._source, self._more, self._held, self._left = iter(calls), True, False, n_calls
        self._joined, self._asks_again = False, asks_again
        # Functions have their random state apart: ``ProcessState``.
        changes = [intercepted(), steps_shared()]
        with search_process(random_state=False, also=changes), ExitStack() as stack:
            stack.callback(self._cancel)
            while self._round():
                while self._ended:
                    self._held = False
                    yield self._ended.popleft()

    def program_counts(self) -> dict[str, int]:
        """Counts the "distinct" programs of all executors, and the "roles" in them: steps."""
        counts = [executor.program_counts() for executor in self.executors]
        return {
            "distinct": sum(count["distinct"] for count in counts),
            "roles": sum(count["compiled"] + count["from_cache"] for count in counts),
        }

    # -- a round -----------------------------------------------------------------------------------

    def _round(self) -> bool:
        """Runs functions until they wait, then trains an epoch; False when all have ended."""
        if self._asks_again:
            self._held = False
        self._unreported.clear()
        self._ready.extend(each for each in self._parked if _is_free(each))
        self._parked = [each for each in self._parked if not _is_free(each)]
        while self._step(self._hungry):
            if self._ended:
                return True
        if self.executors.settle():
            return True
        busy = [executor for executor in self.executors if executor.busy]
        if busy and not self._joined:
            # Later, which functions have begun would depend on how long epochs take.
            self._joined = True
            for executor in busy:
                executor.join_waiting()
        for executor in busy:
            if executor.busy:
                none_comes = self._turns.alone or not self._more
                executor.demand.all_asked = none_comes and not self._ready
                executor.advance(self._report, self._meanwhile, self._failed)
        return bool(self._ended or self._threads or self._next_call)

    def _step(self, may_begin: Callable[[], bool]) -> bool:
        """Lets one function run until it waits or ends; False if no function can run."""
        if self._ready:
            self._resume(self._ready.popleft())
            return True
        full = len(self._threads) >= _MOST or len(self._parked) >= _MOST_PARKED
        if full or self._occupied() or not may_begin():
            return False
        call, self._next_call = self._next_call or self._next(), None
        if call is None:
            return False
        if self._looks:
            self._turns.look(call.function if call.of_user is None else call.of_user)
            if self._occupied():
                self._next_call = call
                return False
        seed = random.getrandbits(32) if call.seed is None else call.seed
        thread = FunctionThread(call, seed)
        thread.fit = FitHandler(thread, self, self._noun).fit
        thread.gates, thread.at_gate = self._turns.gates, self._wait_for_earlier
        self._turns.begins(thread)
        self._threads[thread] = None
        self._resume(thread)
        return True

    def _occupied(self) -> bool:
        """Whether the next function must wait until the running one has ended and is reported."""
        return self._turns.alone and bool(self._threads or self._ended)

    def _next(self) -> FunctionCall | None:
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
        """Whether training should wait for more fits, because slots would stay empty."""
        self.executors.settle(a_few=True)
        if self.executors.full:
            return False
        busy = [executor for executor in self.executors if executor.busy]
        if len(busy) > 1 and len(self._packed_fits) >= 4 * max(e.max_slots for e in busy):
            return False
        return all(executor.demand.hungry for executor in busy)

    def _meanwhile(self) -> bool:
        """Lets a function run while the device works; True if one did."""
        return self._step(
            lambda: not self.executors.full and all(e.demand.room for e in self.executors if e.busy)
        )

    def _resume(self, thread: FunctionThread) -> None:
        thread.waits_for_epoch = False
        self._turns.resumes(thread, len(self._threads))
        thread.go()
        if thread.ended:
            self._threads.pop(thread, None)
            self._unreported.append(thread)
        self._turns.stopped(thread, len(self._threads))
        if thread.ended:
            if thread.fatal is not None:
                raise thread.fatal
            thread.outcome.seconds += sum(f.seconds for f in thread.outcome.fits if f.program)
            self._ended.append(thread.outcome)
        elif thread.waits_for is not None:
            self._parked.append(thread)
        elif not thread.waits_for_epoch:
            self._ready.append(thread)

    def _cancel(self) -> None:
        threads, self._threads = self._threads, {}
        for thread in threads:
            thread.cancel()
        if self._packed_fits:
            self.executors.close()  # their slots and queues hold fits of functions that are gone
        self._packed_fits.clear()
        self._next_call = None
        self._parked.clear()
        self._ready.clear()
        self._ended.clear()

    # -- what executors say ------------------------------------------------------------------------

    def _report(self, report: EpochReport) -> LateAnswer:
        packed_fit = self._packed_fits[report.number]
        packed_fit.seconds += report.seconds
        if packed_fit.n_before + report.epoch <= packed_fit.epochs:
            return "continue"  # another process trains it from its beginning again
        packed_fit.epochs = packed_fit.n_before + report.epoch
        return lambda: self._continue_function(packed_fit, report)

    def _continue_function(self, packed_fit: PackedFit, report: EpochReport) -> Answer:
        """Lets the function see the report of an epoch; its callbacks decide what happens next."""
        packed_fit.report = report
        self._resume(packed_fit.thread)
        if not packed_fit.over:
            return "continue"
        self._packed_fits.pop(packed_fit.number, None)
        return "stop"

    def _failed(self, number: int, error: BaseException) -> None:
        packed_fit = self._packed_fits.pop(number)
        packed_fit.error, packed_fit.over = error, True
        if packed_fit.thread not in self._ready:  # as one is that was taken in just now
            self._ready.append(packed_fit.thread)

    def _submitted(self, number: int, why: str | None) -> None:
        """A fit that was sent to the process waits there, unless ``why`` says why it cannot."""
        if why is None:
            self._ready.append(self._packed_fits[number].thread)
        else:
            self._failed(number, Unpackable(why))

    def _died(self, error: BaseException, failed: Mapping[int, BaseException]) -> None:
        """The process that trains has ended by itself, and some fits have failed with it."""
        for number, packed_fit in list(self._packed_fits.items()):
            packed_fit.died = number not in failed
            self._failed(number, failed.get(number, error))

    def _between(self, number: int, slot: SentSlot, step: int, logs: Any) -> bool:
        """Calls hooks between two batches of a fit that was sent; as of ``ProcessPool``."""
        hooks = self._packed_fits[number].hooks
        assert hooks is not None
        hooks.attach(slot)
        if logs is None:
            hooks.begin_batch(step)
        else:
            hooks.end_batch(step, logs)
        return hooks.in_batches

    # -- what fits ask for (``FitScheduler``) ------------------------------------------------------

    def executor_for(self, arguments: FitArguments, model: Any) -> Any:
        """Returns the executor that has the data of a fit of a built model."""
        executor = self.executors.of(arguments, model)
        to_come = 0 if self._turns.alone else self._left or 0
        executor.demand.expected = executor.waiting + 1 + to_come
        return executor

    def number(self) -> int:
        """Returns a number that no fit has had."""
        return next(self._numbers)

    def before_fit(self, thread: FunctionThread, model: Any, callbacks: list[Any]) -> None:
        """Returns when no other running function needs what the fit will change."""
        while True:
            other = self._turns.waits_for(thread, model, callbacks, len(self._threads))
            if other is None:
                return
            thread.wait_for(other)

    def _wait_for_earlier(self, thread: FunctionThread) -> None:
        """Returns when all functions that began earlier have ended and are reported."""
        if not is_intercepted():  # its pack waits for it
            number = thread.outcome.number
            self.say(
                f"{self._noun} {number} touches in fit what other {self._noun}s change. Results "
                f"may differ from those of {self._noun}s that run one after the other. Pass "
                "concurrent=False to be sure"
            )
            return
        self._turns.at_gate(len(self._threads))
        while True:
            earlier = itertools.takewhile(lambda each: each is not thread, self._threads)
            others = [*self._unreported, *earlier]
            waited = next((e for e in others if not self._turns.waits_in_turn(e, thread)), None)
            if waited is None:
                return
            thread.wait_for(waited)

    def add(self, packed_fit: PackedFit, model: Any, callbacks: list[Any]) -> None:
        """Registers a fit that its executor has queued."""
        self._packed_fits[packed_fit.number] = packed_fit
        self._turns.built(packed_fit.thread, model, callbacks)

    def say(self, text: str) -> None:
        """Passes a note on to the user; the same note is passed on once only."""
        key = text.partition(": ")[2] or text
        if self._notes is not None and key not in self._said:
            self._said.add(key)
            self._notes(text)


def _is_free(thread: FunctionThread) -> bool:
    """Whether the function that a parked one waits for has ended."""
    return thread.waits_for is None or thread.waits_for.ended
