"""Trains the fits that a session sends, in the session's own process, whose Keras runs on JAX."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from paceline.compat.interception.batch_hooks import AskedHooks
from paceline.compat.interception.executor_pool import (
    check_data,
    executor_of,
    job_of,
    mapped,
    prepare_model,
)
from paceline.compat.interception.fit_arguments import ReadFold
from paceline.data.arrays import ArrayData, prepare
from paceline.errors import UsageError
from paceline.executor.base import Answer, EpochReport, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.process import search_process
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import RaisedError, Told
from paceline.executor.session.models import SentModel
from paceline.executor.tokens import TokenChecks
from paceline.executor.training.memory import MemorySharers
from paceline.pack.slot_rows import on_host
from paceline.program.canonical import Unpackable
from paceline.program.numbers import number_settings
from paceline.program.trace import State
from paceline.tuner.search.session import what_stands_in_the_way

#: Trainable, non-trainable and optimizer variables of a model, in Keras' order.
Values = list[list[np.ndarray]]
#: An epoch of a fit, without functions, and the variables after it if they are wanted.
SentReport = tuple[EpochReport, Values]


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
    numbers: Mapping[str, Any]  # as of ``number_settings``, where the fit was called
    # The orders of the examples in its first epochs, i32[N] each; ``FitServer.reorder`` adds those
    # of later epochs. None: always that of the data.
    orders: list[np.ndarray] | None = None
    fold: ReadFold | None = None  # as of ``PackedFit``
    values: Values | None = None  # from which it continues; None: those of the model


@dataclass
class ExecutorFacts:
    """What the session must know of an executor to decide which functions run."""

    busy: bool = False
    hungry: bool = True
    room: bool = True
    waiting: int = 0
    max_slots: int = 1
    counts: Mapping[str, int] = field(default_factory=dict)
    # The session sets these, as of ``TrialDemand``.
    expected: int = 1
    all_asked: bool = False

    @classmethod
    def of(cls, executor: LocalExecutor) -> ExecutorFacts:
        """Of an executor, now."""
        demand, counts = executor.demand, executor.program_counts()
        free = demand.hungry, demand.room
        return cls(executor.busy, *free, executor.waiting, executor.max_slots, counts)


def serve_fits(link: SessionLink, options: PackOptions) -> None:
    """Does what the session asks for, until it says that this is all."""
    with search_process():
        server = FitServer(link, options)
        try:
            server.run()
        finally:
            server.close_all()


class FitServer:
    """Has an executor for each set of data, as the session's ``ProcessPool`` numbers them.

    The session calls its methods ``open`` to ``answer``, by name.
    """

    def __init__(self, link: SessionLink, options: PackOptions) -> None:
        self._link, self._options = link, options
        self._executors: dict[int, tuple[LocalExecutor, SearchData]] = {}
        self._refused: dict[int, str] = {}  # why there is no executor for data
        self._tokens, self._sharers = TokenChecks(), MemorySharers()
        self._fits: dict[int, _Fit] = {}
        self._calls: deque[Told] = deque()  # that wait until an epoch has been answered
        self._reports: list[SentReport] = []  # that are to be sent
        self._answers: dict[int, Answer] = {}

    def run(self) -> None:
        """Does one call after another, until the session ends this."""
        while (call := self._next()).name != "end":
            self._do(call)

    def close_all(self) -> None:
        """Drops all data and programs."""
        for number in list(self._executors):
            self.close(number)

    def _do(self, call: Told) -> None:
        getattr(self, call.name)(*call.arguments)

    def _next(self) -> Told:
        return self._calls.popleft() if self._calls else self._link.receive()

    # -- what the session calls --------------------------------------------------------------------

    def open(self, number: int, sent: SearchData) -> None:
        """Creates an executor for data."""
        # The session's backend holds integers of 64 bits, of which JAX makes something else.
        data = mapped(sent, _of_here)
        note: Callable[[str], None] = partial(self._link.tell, "note")
        try:
            self._executors[number] = executor_of(data, self._options, note, self._sharers), data
        except UsageError as error:  # as of validation data for which there is no memory
            self._refused[number] = str(error)

    def close(self, number: int) -> None:
        """Drops an executor and its data."""
        if self._refused.pop(number, None) is None:
            self._executors.pop(number)[0].close()

    def submit(self, sent: SentFit) -> None:
        """Takes a fit in."""
        if (why := self._refused.get(sent.executor)) is not None:
            self._link.tell("submitted", sent.executor, ExecutorFacts(), sent.number, why)
            return
        executor, data = self._executors[sent.executor]
        try:
            _check_numbers(sent.numbers)
            executor.demand.expected = executor.waiting + 1 + sent.expected
            assert isinstance(data.train, ArrayData)
            hooks = AskedHooks(sent.number, self._link.tell, self._of_hooks)
            fit = _Fit(sent, executor, data.train, hooks)
            check_data(fit.model, data, self._tokens)
            executor.submit(
                job_of(
                    *(sent.number, fit.model, sent.epochs, sent.batch_size, fit.order),
                    hooks if data.by_batch else None,
                    sent.fold,
                )
            )
            self._fits[sent.number] = fit
            if sent.values is not None:
                self.replace(sent.number, sent.values)
        except Exception as error:  # whatever the user's code raises while it is traced
            why = what_stands_in_the_way(error)
        self._link.tell("submitted", sent.executor, ExecutorFacts.of(executor), sent.number, why)

    def replace(self, number: int, values: Values) -> None:
        """Gives a fit that waits for its next epoch other variables."""
        if (fit := self._fits.get(number)) is not None:  # else it has failed meanwhile
            fit.executor.replace(number, fit.state(values))

    def reorder(self, number: int, order: Any, fold: ReadFold | None) -> None:
        """Gives a fit the orders of its epoch after those whose orders are known."""
        if (fit := self._fits.get(number)) is None:
            return
        if fit.sent.orders is not None:
            fit.sent.orders.append(order)
        if fit.sent.fold is not None and fold is not None:
            fit.sent.fold.validation = fold.validation

    def drop(self, number: int) -> None:
        """Forgets a fit that waits for a slot."""
        if (fit := self._fits.pop(number, None)) is not None:
            fit.executor.drop(number)

    def advance(self, number: int, all_asked: bool, joins: bool) -> None:
        """Trains an epoch; ``joins``: fits of several widths share programs from now on."""
        (executor, _), error = self._executors[number], None
        try:
            if joins:
                executor.join_waiting()
            executor.demand.all_asked = all_asked
            executor.advance(self._report, self._meanwhile, self._failed)
        except Exception as raised:
            error = RaisedError.of(raised)
        self._link.tell("advanced", ExecutorFacts.of(executor), error)

    def answer(self, answers: Mapping[int, Answer], changes: list[Told]) -> None:
        """Says what becomes of the fits whose epoch was reported, and what was changed in them."""
        self._answers.update(answers)
        for call in changes:
            self._do(call)

    # -- an epoch ----------------------------------------------------------------------------------

    def _meanwhile(self) -> bool:
        """Does what the session wants done while the device works; False if there is nothing."""
        if not self._calls and (call := self._link.receive(wait=False)) is not None:
            self._calls.append(call)
        if not self._calls or self._calls[0].name == "end":
            return False
        self._do(self._next())
        return True

    def _of_hooks(self) -> tuple[str, Any]:
        """What the session says next of hooks between two batches."""
        while (call := self._link.receive()).name not in ("read", "done"):
            self._calls.append(call)
        return call.name, call.arguments

    def _report(self, report: EpochReport) -> Callable[[], Answer]:
        fit, values = self._fits[report.number], []
        if fit.sent.watched or report.last:
            assert report.state is not None
            values = [list(map(np.asarray, part)) for part in on_host(report.state()).lists()[:3]]
        sent = replace(report, logs=dict(report.logs), weights=None, state=None)
        self._reports.append((sent, values))
        return lambda: self._answer(report.number)

    def _answer(self, number: int) -> Answer:
        if self._reports:
            reports, self._reports = self._reports, []
            self._link.tell("reported", reports)
        while number not in self._answers:
            if (call := self._link.receive()).name == "answer":
                self._do(call)
            else:
                self._calls.append(call)
        answer = self._answers.pop(number)
        if answer == "stop":
            self._fits.pop(number, None)
        else:
            self._fits[number].hooks.begin_epoch()
        return answer

    def _failed(self, number: int, error: BaseException) -> None:
        self._fits.pop(number, None)
        self._link.tell("failed", number, RaisedError.of(error))


def _of_here(data: ArrayData) -> ArrayData:
    return replace(prepare(*data.inputs, allow_nan=True), wrapped=data.wrapped)


def _check_numbers(sent: Mapping[str, Any]) -> None:
    here = number_settings()
    if other := [name for name, value in sent.items() if here[name] != value]:
        raise Unpackable(
            f"its function sets Keras' {', '.join(other)} to another value than the first "
            "function did. Set it before, for all functions"
        )


class _Fit:
    """A fit that trains here."""

    def __init__(
        self, sent: SentFit, executor: LocalExecutor, data: ArrayData, hooks: AskedHooks
    ) -> None:
        self.sent, self.executor, self.hooks = sent, executor, hooks
        self._everyone = np.arange(data.n, dtype=np.int32)
        self.model, came = sent.model.read()
        model = self.model
        prepare_model(model, data.batch_shapes(sent.batch_size))
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
        self._dtypes = [[variable.value.dtype for variable in part] for part in parts]
        self._metrics = [variable.value for variable in model.metrics_variables]
        _check_tracked(came, [*chain(*parts), *model.metrics_variables])

    def order(self, epoch: int) -> np.ndarray:
        """The order of the examples in an epoch, counted from 0."""
        if (orders := self.sent.orders) is None:
            return self._everyone
        if epoch > 0:
            orders[epoch - 1] = self._everyone  # so that the memory of the old order is free
        return orders[epoch]

    def state(self, values: Values) -> State:
        """Values of the session's variables as those of this process."""
        parts = [
            [np.asarray(value).astype(dtype) for value, dtype in zip(part, dtypes, strict=True)]
            for part, dtypes in zip(values, self._dtypes, strict=True)
        ]
        return State(parts[0], parts[1], parts[2], self._metrics)


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
