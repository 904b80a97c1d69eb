"""Trains the fits that a session sends, in the session's own process, whose Keras runs on JAX."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from paceline.compat.interception.executor_pool import check_data, prepare_model
from paceline.data.arrays import ArrayData, prepare
from paceline.executor.base import Answer, EpochReport, Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.process import search_process
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import RaisedError
from paceline.executor.session.models import SentModel
from paceline.executor.tokens import TokenChecks
from paceline.pack.slot_rows import on_host
from paceline.program.canonical import Unpackable
from paceline.program.numbers import number_settings
from paceline.program.trace import State
from paceline.tuner.search.session import what_stands_in_the_way

#: Trainable, non-trainable and optimizer variables of a model, in Keras' order.
Values = list[list[np.ndarray]]


@dataclass(frozen=True)
class SentData:
    """The data of an executor, which the process makes when they come."""

    train: tuple[Any, ...]  # ``ArrayData.inputs``
    validation: tuple[Any, ...] | None
    validation_batch_size: int | None
    shuffle: bool


@dataclass(frozen=True)
class SentFit:
    """A fit to train."""

    number: int
    executor: int
    model: SentModel
    epochs: int
    batch_size: int
    watched: bool  # whether the session wants the variables after each epoch
    expected: int  # as of ``TrialDemand``
    # As ``np.random.get_state`` returns it: the orders of examples are drawn from there. None: no
    # shuffling.
    random: Any
    numbers: Mapping[str, Any]  # as of ``number_settings``, where the fit was called
    n_drawn: int = 0  # orders that were drawn before
    values: Values | None = None  # from which it goes on; None: those of the model


@dataclass(frozen=True)
class NextEpoch:
    """An executor trains an epoch."""

    executor: int
    all_asked: bool  # as of ``TrialDemand``
    joins: bool  # whether trials of several widths are joined first


@dataclass(frozen=True)
class NewValues:
    """A fit that waits for its first epoch has other variables; None: it has ended."""

    number: int
    values: Values | None


@dataclass(frozen=True)
class EpochAnswers:
    """What becomes of the fits whose epoch was reported."""

    answers: Mapping[int, Answer]
    values: Mapping[int, Values]  # of those whose variables were changed


@dataclass(frozen=True)
class ExecutorFacts:
    """What the session must know of an executor to decide which functions run."""

    busy: bool = False
    hungry: bool = True
    room: bool = True
    waiting: int = 0
    max_slots: int = 1
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, executor: LocalExecutor) -> ExecutorFacts:
        """Of an executor, now."""
        demand = executor.demand
        return cls(
            executor.busy,
            demand.hungry,
            demand.room,
            executor.waiting,
            executor.max_slots,
            executor.program_counts(),
        )


@dataclass(frozen=True)
class SentReport:
    """An ``EpochReport``, and the variables if they are wanted."""

    number: int
    epoch: int
    logs: dict[str, float]
    seconds: float
    program: str | None
    plan: str
    values: Values | None


#: A command of the session. With a number and None, an executor goes; None: all is done.
Command = tuple[int, SentData | None] | SentFit | NextEpoch | NewValues | EpochAnswers | None


def serve_fits(link: SessionLink, options: PackOptions) -> None:
    """Does what the session asks for, until it says that this is all."""
    with search_process():
        server = FitServer(link, options)
        try:
            server.run()
        finally:
            server.close()


class FitServer:
    """Has an executor for each set of data, as the session's ``ProcessPool`` numbers them."""

    def __init__(self, link: SessionLink, options: PackOptions) -> None:
        self._link, self._options = link, options
        self._executors: dict[int, LocalExecutor] = {}
        self._data: dict[int, SearchData] = {}  # what each executor trains on
        self._tokens = TokenChecks()
        self._fits: dict[int, _Fit] = {}
        self._commands: deque[Command] = deque()
        self._reports: list[SentReport] = []  # that are to be sent
        self._answers: dict[int, Answer] = {}

    def run(self) -> None:
        """Does one command after another."""
        while True:
            command = self._next()
            if command is None:
                return
            if isinstance(command, NextEpoch):
                self._advance(command)
            else:
                self._do(command)

    def close(self) -> None:
        """Drops all data and programs."""
        for executor in self._executors.values():
            executor.close()

    def _next(self) -> Command:
        while not self._commands:
            self._commands.extend(self._link.ask("commands", True))
        return self._commands.popleft()

    def _do(self, command: Command) -> None:
        if isinstance(command, SentFit):
            self._submit(command)
        elif isinstance(command, NewValues):
            self._change(command)
        elif isinstance(command, tuple):
            number, sent = command
            if number in self._executors:
                del self._data[number]
                self._executors.pop(number).close()
            if sent is not None:
                validation = None if sent.validation is None else _data(sent.validation)
                self._data[number] = SearchData(
                    _data(sent.train),
                    validation,
                    validation_batch_size=sent.validation_batch_size,
                    shuffle=sent.shuffle,
                )
                self._executors[number] = self._executor(self._data[number])

    def _executor(self, data: SearchData) -> LocalExecutor:
        note: Callable[[str], None] = lambda text: self._link.tell("note", text)  # noqa: E731
        return LocalExecutor(data, self._options, note=note, in_order=True)

    # -- fits --------------------------------------------------------------------------------------

    def _submit(self, sent: SentFit) -> None:
        executor, why = self._executors[sent.executor], None
        try:
            self._check_numbers(sent.numbers)
            executor.demand.expected = executor.waiting + 1 + sent.expected
            data = self._data[sent.executor]
            assert isinstance(data.train, ArrayData)
            fit = _Fit(sent, executor, data.train)
            check_data(fit.model, data, self._tokens)
            executor.submit(fit.job())
            self._fits[sent.number] = fit
            if sent.values is not None:
                executor.replace(sent.number, fit.state(sent.values))
        except Exception as error:  # whatever the user's code raises while it is traced
            why = what_stands_in_the_way(error)
        self._link.tell("submitted", sent.executor, ExecutorFacts.of(executor), sent.number, why)

    def _check_numbers(self, sent: Mapping[str, Any]) -> None:
        here = number_settings()
        if other := [name for name, value in sent.items() if here[name] != value]:
            raise Unpackable(
                f"its function sets Keras' {', '.join(other)} to another value than the first "
                "function did. Set it before, for all functions"
            )

    def _change(self, new: NewValues) -> None:
        fit = self._fits.get(new.number)
        if fit is None:
            return  # it has failed meanwhile
        if new.values is None:
            fit.executor.drop(new.number)
            del self._fits[new.number]
        else:
            fit.executor.replace(new.number, fit.state(new.values))

    # -- an epoch ----------------------------------------------------------------------------------

    def _advance(self, command: NextEpoch) -> None:
        executor, error = self._executors[command.executor], None
        try:
            if command.joins:
                executor.join_waiting()
            executor.demand.all_asked = command.all_asked
            executor.advance(self._report, self._meanwhile, self._failed)
        except Exception as raised:
            error = RaisedError.of(raised)
        self._link.tell("advanced", command.executor, ExecutorFacts.of(executor), error)

    def _meanwhile(self) -> bool:
        """Does what the session wants done while the device works; False if there is nothing."""
        if not self._commands:
            self._commands.extend(self._link.ask("commands", False))
        if not self._commands or self._commands[0] is None:
            return False
        self._do(self._commands.popleft())
        return True

    def _report(self, report: EpochReport) -> Callable[[], Answer]:
        fit, values = self._fits[report.number], None
        if fit.sent.watched or report.last:
            assert report.state is not None
            values = [list(map(np.asarray, part)) for part in on_host(report.state()).lists()[:3]]
        self._reports.append(
            SentReport(
                report.number,
                report.epoch,
                dict(report.logs),
                report.seconds,
                report.program,
                report.plan,
                values,
            )
        )
        return lambda: self._answer(report.number)

    def _answer(self, number: int) -> Answer:
        if self._reports:
            reports, self._reports = self._reports, []
            self._link.tell("reported", reports)
        while number not in self._answers:
            for command in self._link.ask("commands", True):
                if isinstance(command, EpochAnswers):
                    self._answers.update(command.answers)
                    for each, values in command.values.items():
                        fit = self._fits[each]
                        fit.executor.replace(each, fit.state(values))
                else:
                    self._commands.append(command)
        answer = self._answers.pop(number)
        if answer == "stop":
            self._fits.pop(number, None)
        return answer

    def _failed(self, number: int, error: BaseException) -> None:
        self._fits.pop(number, None)
        self._link.tell("failed", number, RaisedError.of(error))


class _Fit:
    """A fit that trains here."""

    def __init__(self, sent: SentFit, executor: LocalExecutor, data: ArrayData) -> None:
        self.sent, self.executor = sent, executor
        self.model, came = sent.model.read()
        model = self.model
        prepare_model(model, data.batch_shapes(sent.batch_size))
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
        self._dtypes = [[variable.value.dtype for variable in part] for part in parts]
        self._metrics = [variable.value for variable in model.metrics_variables]
        _check_tracked(came, [*chain(*parts), *model.metrics_variables])
        self._orders = _Orders(sent, data.n)

    def job(self) -> Job:
        """The job of an executor that trains the fit."""
        return Job(
            number=self.sent.number,
            seed=self.sent.number,
            epochs=self.sent.epochs,
            batch_size=self.sent.batch_size,
            model=self.model,
            rebuild=lambda: self.model,
            order=self._orders,
        )

    def state(self, values: Values) -> State:
        """Values of the session's variables as those of this process."""
        parts = [
            [np.asarray(value).astype(dtype) for value, dtype in zip(part, dtypes, strict=True)]
            for part, dtypes in zip(values, self._dtypes, strict=True)
        ]
        return State(parts[0], parts[1], parts[2], self._metrics)


class _Orders:
    """The orders of a fit's examples, epoch by epoch: called with the number of one, from 0."""

    def __init__(self, sent: SentFit, n: int) -> None:
        self._n, self._random, self._drawn = n, None, -1
        self._order = np.arange(n, dtype=np.int32)
        if sent.random is not None:
            self._random = np.random.RandomState()
            self._random.set_state(sent.random)
            for _ in range(sent.n_drawn):
                self._random.permutation(n)

    def __call__(self, epoch: int) -> np.ndarray:
        while self._random is not None and self._drawn < epoch:
            self._order = self._random.permutation(self._n).astype(np.int32)
            self._drawn += 1
        return self._order


def _data(inputs: Sequence[Any]) -> ArrayData:
    # The session's backend holds integers of 64 bits, of which JAX makes something else.
    return prepare(*inputs, allow_nan=True)


def _check_tracked(came: list[Any], tracked: list[Any]) -> None:
    """Refuses variables that a loss, say, reads and the model does not have.

    A program of JAX holds their present values; in the session, a callback may assign others.
    """
    known = set(map(id, tracked))
    for variable in came:
        if id(variable) not in known:
            raise Unpackable(
                f"its code reads the variable {variable.path!r}, which isn't part of the model. "
                "Assign it to an attribute of the model or of a layer"
            )
