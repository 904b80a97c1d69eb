"""Executors of fits in the session's own process, where the session's Keras is not on JAX.

A function's ``fit`` sends its model, as it is, and the data, once for all fits on equal data. The
process trains packs as a session on JAX would, and sends each epoch's logs, and the variables where
callbacks may read them. ``fit_server.py`` is the other side.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from paceline.compat.interception.fit_arguments import FitArguments
from paceline.compat.interception.fit_server import (
    Command,
    EpochAnswers,
    ExecutorFacts,
    NewValues,
    NextEpoch,
    SentData,
    SentFit,
    SentReport,
    Values,
    serve_fits,
)
from paceline.executor.base import (
    Answer,
    EpochReport,
    Failed,
    LateAnswer,
    PackOptions,
    Report,
    settled,
)
from paceline.executor.process import StopSignal
from paceline.executor.session.messages import ProcessCall
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import (
    JaxProcess,
    ProcessDiedError,
    process_of_session,
)
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.trace import State
from paceline.tuner.search.own_process import why_in_session

__all__ = ["ProcessPool", "why_in_session"]

#: Number of data sets that stay in the process although no fit needs them.
_IDLE = 4
#: Fits whose models the process reads and traces while functions build the next ones, at most.
_MOST_SENT = 2
#: How often the process may die before fits train in the session.
_MOST_DEATHS = 4
#: Seconds between two looks for a signal while nothing happens.
_LOOK = 0.1


@dataclass(frozen=True)
class _Message:
    """What the process tells: the name, and what comes with it."""

    name: str
    arguments: tuple[Any, ...]


class FitProcess:
    """The connection to the session's process while it serves fits.

    A thread of its own talks to the process; the engine's thread takes what came from ``inbox``.
    """

    def __init__(self, options: PackOptions) -> None:
        self.inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stack = ExitStack()
        self._process: JaxProcess = self._stack.enter_context(process_of_session())
        self._options, self._sent = options, threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=[keras_private.settings()], name="paceline-fits", daemon=True
        )
        self._thread.start()
        self._sent.wait()  # until then, the state of this process must stay as it is

    def send(self, command: Command) -> None:
        """Has the process do something, after all that it was sent before."""
        self._outbox.put(command)

    def close(self, *, now: bool) -> None:
        """Ends the connection; the process is kept for later, unless it works and is to end now."""
        if now:
            self._process.close()
        self.send(None)  # also if the process is gone: the thread may wait for a command
        self._thread.join()
        self._stack.close()

    def _serve(self, settings: dict[str, Any]) -> None:
        """Runs the call; ``settings`` are Keras', which keeps them for each thread."""
        told = "submitted", "reported", "advanced", "failed", "note"
        functions: dict[str, Callable[..., Any]] = {name: self._teller(name) for name in told}
        functions["commands"] = self._commands
        error: BaseException | None = None
        try:
            keras_private.use_settings(settings)
            call = ProcessCall(serve_fits, {"options": self._options}, OutsideState())
            said = self._teller("said")
            self._process.call(call, functions, said, StopSignal(), self._sent.set)
        except BaseException as raised:
            error = raised
        self._sent.set()
        self.inbox.put(_Message("ended", (error,)))

    def _teller(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.inbox.put(_Message(name, arguments))

    def _commands(self, waits: bool) -> list[Command]:
        """The commands that wait; ``waits``: for the first one, if there is none."""
        found = [self._outbox.get()] if waits else []
        while not self._outbox.empty():
            found.append(self._outbox.get())
        return found


@dataclass
class ProcessDemand:
    """As ``TrialDemand``, as far as the engine asks; the process says what it is."""

    hungry: bool = True
    room: bool = True
    expected: int = 1
    all_asked: bool = False


@dataclass(eq=False)
class ProcessExecutor:
    """An executor in the session's process, as ``LocalExecutor`` is one in this process."""

    number: int
    pool: ProcessPool
    demand: ProcessDemand = field(default_factory=ProcessDemand)
    facts: ExecutorFacts = field(default_factory=ExecutorFacts)
    sent: set[int] = field(default_factory=set)  # fits that the process has not taken in yet
    _joins: bool = False
    _answering: dict[int, Values] | None = None  # values for fits, while answers are collected

    @property
    def busy(self) -> bool:
        """Whether any fit is waiting or training."""
        return self.facts.busy or bool(self.sent)

    @property
    def waiting(self) -> int:
        """Number of fits that have no slot."""
        return self.facts.waiting + len(self.sent)

    @property
    def max_slots(self) -> int:
        """Fits that train at once, at most."""
        return self.facts.max_slots

    def program_counts(self) -> dict[str, int]:
        """As of ``PackExecutor``, after the last epoch."""
        return {"distinct": 0, "compiled": 0, "from_cache": 0, **self.facts.counts}

    def update(self, facts: ExecutorFacts) -> None:
        """Takes in what the process knows of the executor."""
        self.facts = facts
        self.demand.hungry, self.demand.room = facts.hungry, facts.room

    def join_waiting(self) -> None:
        """Has fits of several widths that wait share programs, before the next epoch."""
        self._joins = True

    def submit(self, fit: SentFit) -> None:
        """Sends a fit; ``pool.submitted`` is told what the process says."""
        self.sent.add(fit.number)
        self.pool.send(fit)

    def replace(self, number: int, state: State) -> None:
        """Gives a fit that waits for its next epoch other values of its variables."""
        values: Values = [list(part) for part in state.lists()[:3]]
        if self._answering is not None:
            self._answering[number] = values
        else:
            self.pool.send(NewValues(number, values))

    def drop(self, number: int) -> None:
        """Forgets a fit that waits for a slot."""
        self.pool.send(NewValues(number, None))

    def close(self) -> None:
        """Drops the executor and its data."""
        self.pool.send((self.number, None))

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """As of ``Executor``."""
        self.pool.send(NextEpoch(self.number, self.demand.all_asked, self._joins))
        self._joins = False
        while True:
            message = self.pool.next(meanwhile)
            if message.name == "reported":
                self._reported(message.arguments[0], report)
            elif message.name == "failed":
                number, error = message.arguments
                failed(number, error.again())
            elif message.name == "advanced":
                _, facts, error = message.arguments
                self.update(facts)
                if error is not None:
                    raise error.again()
                return
            elif message.name == "ended":
                return

    def _reported(self, reports: list[SentReport], report: Report) -> None:
        late: dict[int, LateAnswer] = {}
        for each in reports:
            late[each.number] = report(_epoch_report(each))
        self._answering = {}
        try:
            answers: dict[int, Answer] = {n: settled(answer) for n, answer in late.items()}
            self.pool.send(EpochAnswers(answers, self._answering))
        finally:
            self._answering = None


def _epoch_report(sent: SentReport) -> EpochReport:
    values = sent.values or []
    return EpochReport(
        number=sent.number,
        epoch=sent.epoch,
        logs=sent.logs,
        seconds=sent.seconds,
        program=sent.program,
        plan=sent.plan,
        weights=lambda: (values[0], values[1]),
        state=lambda: State(values[0], values[1], values[2], []),
    )


class ProcessPool:
    """Executors in the session's process, one for each set of data; as ``ExecutorPool``.

    ``submitted`` is called with the number of a fit that was sent, and why it cannot train there;
    None: it waits there. ``died`` is called when the process has ended by itself.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        options: PackOptions,
        submitted: Callable[[int, str | None], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._say, self._options, self._submitted, self._died = say, options, submitted, died
        self._process: FitProcess | None = None
        self._by_key: dict[tuple[Any, ...], ProcessExecutor] = {}  # the one used last comes last
        self._n_executors = self._n_died = 0
        self._why_none: str | None = None  # why no process serves fits; None: one can
        self._advancing = False

    def __iter__(self) -> Iterator[ProcessExecutor]:
        return iter(list(self._by_key.values()))

    @property
    def n_sent(self) -> int:
        """Number of fits that the process has not taken in yet."""
        return sum(len(executor.sent) for executor in self._by_key.values())

    def of(self, arguments: FitArguments, model: Any) -> ProcessExecutor:
        """Returns the executor for a fit; makes it if there is none for the data.

        Raises Unpackable if the process has died too often.
        """
        if self._why_none is not None:
            raise Unpackable(self._why_none)
        key = arguments.key()
        executor = self._by_key.pop(key, None)
        if executor is None:
            idle = [known for known, each in self._by_key.items() if not each.busy]
            for known in idle[: max(0, len(idle) - _IDLE + 1)]:
                self._by_key.pop(known).close()
            self._n_executors += 1
            executor = ProcessExecutor(self._n_executors, self)
            validation = None if arguments.validation is None else arguments.validation.inputs
            data = SentData(
                arguments.data.inputs,
                validation,
                arguments.validation_batch_size,
                arguments.shuffle,
            )
            self.send((executor.number, data))
        self._by_key[key] = executor
        return executor

    def send(self, command: Command) -> None:
        """Sends a command; starts the process first if there is none."""
        if self._process is None:
            self._process = FitProcess(self._options)
        self._process.send(command)

    def next(self, meanwhile: Callable[[], bool]) -> _Message:
        """The next message that is for an executor; does work meanwhile."""
        self._advancing = True
        while True:
            message = self._take(wait=False)
            if message is None and not meanwhile():
                message = self._take(wait=True)
            if message is not None and not self._handled(message):
                self._advancing = message.name not in ("advanced", "ended")
                return message

    @property
    def full(self) -> bool:
        """Whether no further fit should come before the process has taken in those it was sent."""
        return self.n_sent >= _MOST_SENT

    def settle(self, *, a_few: bool = False) -> bool:
        """Waits until all fits are taken in, or all but ``a_few``; returns whether it waited.

        Not while an executor advances.
        """
        waited, at_most = False, _MOST_SENT - 1 if a_few else 0
        while self.n_sent > at_most and not self._advancing:
            waited = True
            message = self._take(wait=True)
            if message is not None:
                self._handled(message)
        return waited

    def _take(self, *, wait: bool) -> _Message | None:
        assert self._process is not None
        try:
            # Signals come between two looks.
            return self._process.inbox.get(block=wait, timeout=_LOOK if wait else None)
        except queue.Empty:
            return None

    def _handled(self, message: _Message) -> bool:
        if message.name == "said":
            stream, text = message.arguments
            getattr(sys, stream).write(text)
        elif message.name == "note":
            self._say(message.arguments[0])
        elif message.name == "submitted":
            number, facts, fit, why = message.arguments
            for executor in self:
                if executor.number == number:
                    executor.sent.discard(fit)
                    executor.update(facts)
            self._submitted(fit, why)
        elif message.name == "ended":
            self._ended(message.arguments[0])
            return False
        else:
            return False
        return True

    def _ended(self, error: BaseException | None) -> None:
        """The process has ended by itself, and all that it held."""
        process, self._process = self._process, None
        self._by_key.clear()
        if process is not None:
            process.close(now=True)
        self._n_died += 1
        error = error or RuntimeError("the process that trains on JAX has ended")
        if not isinstance(error, ProcessDiedError):
            self._why_none = f"the process on JAX cannot serve this session: {error}"
        elif self._n_died == _MOST_DEATHS:
            self._why_none = f"{error}, {_MOST_DEATHS} times"
        else:
            self._say(f"{error}; its fits continue in another one")
        self._died(error)

    def close(self) -> None:
        """Drops all executors; the process is kept for later, unless a fit still trains."""
        process, self._process = self._process, None
        working = self._advancing or any(executor.busy for executor in self)
        self._by_key.clear()
        self._advancing = False
        if process is not None:
            process.close(now=working)
