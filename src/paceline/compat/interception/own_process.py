"""Executors of fits in the session's own process, if the session's Keras does not run on JAX.

A function's ``fit`` sends its model, as it is, and the data, once for all fits on equal data. The
process trains packs as a session on JAX would. It sends the logs of each epoch, and the variables
if callbacks may read them. ``fit_server.py`` is the other side.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from paceline.compat.interception.batch_hooks import SentSlot
from paceline.compat.interception.fit_arguments import FitArguments, ReadFold
from paceline.compat.interception.fit_server import (
    ExecutorFacts,
    SentFit,
    SentReport,
    Values,
    serve_fits,
)
from paceline.errors import TrialCrashError
from paceline.executor.base import (
    Answer,
    Failed,
    LateAnswer,
    PackOptions,
    Report,
    SearchData,
    settled,
)
from paceline.executor.session.messages import CallEnded, ProcessCall, RaisedError, Told
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import (
    CannotSendError,
    JaxProcess,
    ProcessDiedError,
    process_of_session,
)
from paceline.executor.wall.deaths import DeathRecord, OutOfMemoryKills
from paceline.program.canonical import Unpackable
from paceline.program.trace import State

#: Number of data sets that stay in the process although no fit needs them.
_IDLE = 4
#: Fits whose models the process reads and traces while functions build the next ones, at most.
_MOST_SENT = 2
#: The same while the process starts, which takes as long as building many models.
_MOST_AT_FIRST = 16
#: Seconds between two looks for a signal while nothing happens.
_LOOK = 0.1
#: What the user may do about a fit with which processes die.
_WHAT_TO_DO = (
    "Use a smaller model, batch or data set, or call the function in Python alone to find the "
    "cause."
)
#: Why all fits train in the session from then on.
_CANNOT_SERVE = "the process on JAX cannot serve this session"


@dataclass(eq=False)
class ProcessExecutor:
    """An executor in the session's process, as ``LocalExecutor`` is one in this process."""

    number: int
    pool: ProcessPool
    # As the process reported it last. The engine also reads and sets it as ``TrialDemand``.
    demand: ExecutorFacts = field(default_factory=ExecutorFacts)
    sent: set[int] = field(default_factory=set)  # fits that the process has not taken in yet
    data: SearchData | None = None  # which the process does not have yet; None: it has them
    _joins: bool = False
    _answering: list[Told] | None = None  # changes of fits, while answers are collected

    @property
    def busy(self) -> bool:
        """Whether any fit is waiting or training."""
        return self.demand.busy or bool(self.sent)

    @property
    def waiting(self) -> int:
        """Number of fits that have no slot."""
        return self.demand.waiting + len(self.sent)

    @property
    def max_slots(self) -> int:
        """Fits that train at once, at most."""
        return self.demand.max_slots

    def program_counts(self) -> dict[str, int]:
        """As of ``PackExecutor``, after the last epoch."""
        return {"distinct": 0, "compiled": 0, "from_cache": 0, **self.demand.counts}

    def join_waiting(self) -> None:
        """Lets fits of several widths that wait share programs, before the next epoch."""
        self._joins = True

    def submit(self, fit: SentFit) -> None:
        """Sends a fit; the pool's ``submitted`` hears whether it trains there."""
        self.pool.submit(self, fit)

    def replace(self, number: int, state: State) -> None:
        """Gives a fit that waits for its next epoch other values of its variables."""
        values: Values = [list(part) for part in state.lists()[:3]]
        self._change("replace", number, values)

    def reorder(self, number: int, order: np.ndarray | None, fold: ReadFold | None) -> None:
        """Gives a fit the orders of its next epoch, as of ``PackedFit``."""
        self._change("reorder", number, order, fold)

    def _change(self, name: str, *arguments: Any) -> None:
        if self._answering is not None:
            self._answering.append(Told(name, arguments))
        else:
            self.pool.send(name, *arguments)

    def drop(self, number: int) -> None:
        """Forgets a fit that waits for a slot."""
        self.pool.drop(number)

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """As of ``Executor``."""
        self.pool.send("advance", self.number, self.demand.all_asked, self._joins)
        self._joins = False
        while (message := self.pool.next(meanwhile)) is not None:
            if message.name == "reported":
                self._reported(message.arguments[0], report)
            elif message.name == "failed":
                number, error = message.arguments
                self.pool.over([number])
                failed(number, error.again())
            else:
                self.demand, error = message.arguments
                if error is not None:
                    raise error.again()
                return

    def _reported(self, reports: list[SentReport], report: Report) -> None:
        late: dict[int, LateAnswer] = {}
        for each, values in reports:
            late[each.number] = report(replace(each, state=partial(_state, values)))
        self._answering = []
        try:
            answers: dict[int, Answer] = {n: settled(answer) for n, answer in late.items()}
            self.pool.send("answer", answers, self._answering)
            self.pool.over([n for n, answer in answers.items() if answer == "stop"])
        finally:
            self._answering = None


def _state(values: Values) -> State:
    return State(values[0], values[1], values[2], [])


class ProcessPool:
    """Executors in the session's process, one for each set of data; as ``ExecutorPool``.

    ``submitted`` is called with the number of a fit that was sent, and why it cannot train there;
    None: it waits there. ``died`` is called when the process has ended by itself. It is also given
    the errors of fits that have failed with that, by number: the others start again. ``between``
    calls hooks between two batches of a fit, and returns whether it is to be called again. It is
    given the fit's number and slot, the batch's number, and its logs, which are None before the
    batch.

    After a death fewer fits train at once, and in the end one, alone in the process. A fit with
    which two processes die like this has failed.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        options: PackOptions,
        submitted: Callable[[int, str | None], None],
        died: Callable[[BaseException, Mapping[int, BaseException]], None],
        between: Callable[[int, SentSlot, int, Any], bool],
    ) -> None:
        self._say, self._options, self._submitted, self._died = say, options, submitted, died
        self._between = between
        self._process: JaxProcess | None = None
        self._held = ExitStack()  # gives the process back
        self._by_key: dict[tuple[Any, ...], ProcessExecutor] = {}  # the one used last comes last
        self._n_executors = 0
        self._why_none: str | None = None  # why no process serves fits; None: one can
        self._record, self._kills = DeathRecord(), OutOfMemoryKills()
        self._inside: dict[int, None] = {}  # fits that the process has, the oldest first
        # Fits that wait until the process has none, while they train alone.
        self._queue: deque[tuple[ProcessExecutor, SentFit]] = deque()
        self._begun, self._well = False, 0  # whether any fit was taken in, and how many ended
        self._advancing = False
        self._most_sent = _MOST_AT_FIRST

    def __iter__(self) -> Iterator[ProcessExecutor]:
        return iter(list(self._by_key.values()))

    @property
    def n_sent(self) -> int:
        """Number of fits that the process has not taken in yet."""
        return sum(len(executor.sent) for executor in self._by_key.values())

    def of(self, arguments: FitArguments, model: Any) -> ProcessExecutor:
        """Returns the executor for a fit; creates it if there is none for the data.

        Raises Unpackable if no process can serve this session, and TrialCrashError if it has died
        too often.
        """
        if self._begun and self._record.hopeless:
            raise TrialCrashError(f"{self._record.note()}. {_WHAT_TO_DO}")
        if self._why_none is not None:
            raise Unpackable(self._why_none)
        key = arguments.key()
        executor = self._by_key.pop(key, None)
        if executor is None:
            self._close_idle(_IDLE - 1)
            self._n_executors += 1
            executor = ProcessExecutor(self._n_executors, self, data=arguments.search_data())
        self._by_key[key] = executor
        return executor

    def _close_idle(self, n_kept: int) -> None:
        """Has the process drop all data that no fit needs, but those that were used last."""
        waiting = [executor for executor, _ in self._queue]
        idle = [
            known
            for known, each in self._by_key.items()
            if not each.busy and each.data is None and each not in waiting
        ]
        for known in idle[: max(0, len(idle) - n_kept)]:
            self.send("close", self._by_key.pop(known).number)

    def submit(self, executor: ProcessExecutor, fit: SentFit) -> None:
        """Sends a fit, or has it wait until it is alone in the process."""
        if self._inside and self._record.precautions.alone:
            self._queue.append((executor, fit))
            return
        if executor.data is not None:
            self.send("open", executor.number, executor.data)
            executor.data = None
        self.send("submit", fit)
        executor.sent.add(fit.number)
        self._inside[fit.number] = None

    def drop(self, number: int) -> None:
        """Forgets a fit that waits for a slot."""
        if number in self._inside:
            self.send("drop", number)
            self.over([number])
        self._queue = deque(each for each in self._queue if each[1].number != number)

    def over(self, numbers: list[int]) -> None:
        """The process no longer has some fits."""
        for number in numbers:
            self._inside.pop(number, None)
            self._well += 1

    def _send_next(self) -> None:
        """Sends the next fit that trains alone, once the process has no other."""
        if self._queue and not self._inside and not self._advancing:
            executor, fit = self._queue.popleft()
            waiting = [each for each, _ in self._queue]
            self._close_idle(1 if executor.data is None and executor not in waiting else 0)
            self.submit(executor, fit)

    def send(self, name: str, *arguments: Any) -> None:
        """Calls a method of the process' ``FitServer``; starts the process if there is none."""
        with suppress(ProcessDiedError):  # ``_take`` sees the end
            if self._process is None:
                self._process = self._held.enter_context(process_of_session())
                options = replace(self._options, most=self._record.precautions.at_once)
                call = ProcessCall(serve_fits, {"options": options}, OutsideState())
                try:
                    self._process.begin(call)
                except CannotSendError as error:
                    self._why_none = f"{_CANNOT_SERVE}: {error}"
                    self._give_back(kill=False)
                    raise Unpackable(self._why_none) from error
            self._process.send(Told(name, arguments))

    def next(self, meanwhile: Callable[[], bool]) -> Told | None:
        """The next message for an executor, None at the end of the process; works meanwhile."""
        process, self._advancing = self._process, True
        while self._process is process:
            message = self._take(0.0)
            if message is None and self._process is process and not meanwhile():
                message = self._take(_LOOK)
            if message is not None:
                self._advancing = message.name != "advanced"
                return message
        self._advancing = False
        return None

    @property
    def full(self) -> bool:
        """Whether no further fit should come before the process has taken in those it was sent."""
        return self.n_sent >= self._most_sent or bool(self._queue)

    def settle(self, *, a_few: bool = False) -> bool:
        """Waits until all fits are taken in, or all but ``a_few``; returns whether it waited.

        Not while an executor advances.
        """
        waited, at_most = False, self._most_sent - 1 if a_few else 0
        self._send_next()
        while self.n_sent > at_most and not self._advancing:
            waited = True
            self._take(_LOOK)
        return waited

    def _take(self, seconds: float) -> Told | None:
        """Takes in what the process says next; returns what is for the executor that advances."""
        assert self._process is not None
        try:
            message = self._process.receive(seconds)
        except ProcessDiedError as error:
            self._process_died(error)
            return None
        except Exception as error:  # an error of the user's, say, that cannot be unpickled
            message = CallEnded(error=RaisedError(error, ""))
        if isinstance(message, CallEnded):
            error = RuntimeError(message.unread or "its call has ended")
            error = error if message.error is None else message.error.again()
            self._why_none = f"{_CANNOT_SERVE}: {error}"
            self._ended(error, {})
        elif message is None or message.name in ("reported", "failed", "advanced", "value"):
            return message
        elif message.name == "between":
            self._call_hooks(*message.arguments)
        elif message.name == "say":
            stream, text = message.arguments
            getattr(sys, stream).write(text)
        elif message.name == "note":
            self._say(*message.arguments)
        elif message.asked is not None:
            with suppress(ProcessDiedError):
                self._process.refuse(message.asked)
        elif message.name == "submitted":
            number, facts, fit, why = message.arguments
            for executor in self:
                if executor.number == number:
                    executor.sent.discard(fit)
                    executor.demand = facts
            self._most_sent = _MOST_SENT
            if why is not None:
                self.over([fit])
            self._begun = True
            self._submitted(fit, why)
        return None

    def _call_hooks(self, number: int, step: int, logs: Any, values: Any) -> None:
        """Calls the hooks of a fit, which waits between two batches."""
        process = self._process

        def ask(part: int, leaf: int) -> Any:
            self.send("read", part, leaf)
            while self._process is process:
                if (message := self._take(_LOOK)) is not None:
                    return message.arguments[0]
            raise RuntimeError("the process that trains on JAX has ended")

        slot = SentSlot(values, ask)
        goes_on = self._between(number, slot, step, logs)
        if self._process is process:
            self.send("done", slot.written, goes_on)

    def _process_died(self, error: ProcessDiedError) -> None:
        """Says what happens now, and has fits start again in another process."""
        before, trained = self._record.precautions, sum(e.max_slots for e in self if e.busy)
        state = {
            "training": [(n, {"fit": n}) for n in list(self._inside)[: max(1, trained)]],
            "alone": before.alone,
            "begun": {} if self._begun else None,
            "well": self._well,
        }
        self._record.add(error.code, state, memory=self._kills.happened())
        now, failed = self._record.precautions, dict[int, BaseException]()
        text = "its fits continue in another one"
        if self._record.hopeless and not self._begun:
            self._why_none = f"{error}, {len(self._record.deaths)} times"
        elif len(now.killers) > len(before.killers):
            number = now.killers[-1][0]["fit"]
            how = self._record.deaths[-1].how
            failed[number] = TrialCrashError(
                f"{how}. This happened twice with only this fit in the process. {_WHAT_TO_DO}"
            )
            text = "the fit that was alone in it fails"
        elif now.text:
            text += f" {now.text.replace('trial', 'fit')}"
        if self._why_none is None:
            self._say(f"{error}; {text}")
        self._ended(error, failed)

    def _ended(self, error: BaseException, failed: Mapping[int, BaseException]) -> None:
        self._give_back(kill=True)
        self._died(error, failed)

    def _give_back(self, *, kill: bool) -> None:
        """Forgets the process and its executors; the process stays for later, unless killed."""
        process, self._process = self._process, None
        for executor in self:  # the engine may still hold it
            executor.demand, executor.sent = ExecutorFacts(), set()
        self._by_key.clear()
        self._inside.clear()
        self._queue.clear()
        self._advancing, self._most_sent = False, _MOST_AT_FIRST
        if process is not None and kill:
            process.close()
        self._held.close()

    def close(self) -> None:
        """Drops all executors; the process is kept for later, unless a fit still trains."""
        working = self._advancing or any(executor.busy for executor in self)
        if self._process is not None and not working:
            with suppress(ProcessDiedError):
                self._process.send(Told("end", ()))
                while not isinstance(self._process.receive(_LOOK), CallEnded):
                    pass
        self._give_back(kill=working)
