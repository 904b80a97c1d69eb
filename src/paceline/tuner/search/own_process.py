"""A search of a session whose Keras does not run on JAX, in the session's own process.

The whole search runs there, on JAX: it asks, builds, trains and writes. The session shows it, calls
the user's functions of the search, and reads the study when it is over. What cannot run there
trains in the session, in Keras' ``fit``.

With ``isolate=True`` searches of a session on JAX run there, too. If the process dies, the session
lives, and starts another one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
from optuna.storages import JournalStorage, RDBStorage

from paceline.data.adapters import is_data_set, is_read_once
from paceline.errors import TrialCrashError, TrialHangError, UsageError
from paceline.executor.leading_layers import BuildBehindLayers
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.executor.session.messages import ProcessCall
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import (
    CannotSendError,
    JaxProcess,
    ProcessDiedError,
    process_of_session,
    why_none,
)
from paceline.executor.tf_replicas import has_replicas, leave_memory_to_packs
from paceline.executor.wall.deaths import DeathRecord, OutOfMemoryKills
from paceline.report.notebook import notebook_display, publish
from paceline.search_space import HyperParameters
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import Listeners
from paceline.tuner.search.session import reproduce_in_process, search_in_process
from paceline.tuner.search.session_data import DataOfSession
from paceline.tuner.session.fits import SessionFits
from paceline.tuner.session.text_ahead import TextAhead
from paceline.tuner.trackers.base import Tracker
from paceline.tuner.trackers.threads import TrackersOfSession

#: How often a process that does not come back is replaced in one search, at most.
_HANGS = 3
#: Arguments of ``search`` that hold arrays.
DATA = ("x", "y", "sample_weight", "validation_data")


def why_in_session(data: Mapping[str, Any], *, isolate: bool = False) -> str | None:
    """Why a search on data, arguments of ``search`` by name, cannot run in another process.

    ``isolate`` is as of ``why_none``.
    """
    for name in ("x", "validation_data"):
        value = data.get(name)
        if is_data_set(value) and is_read_once(value):
            return f"{name}: a {type(value).__name__} is read in this process"
    if keras.backend.backend() == "tensorflow" and has_replicas():
        return (
            "TensorFlow has a strategy, or a TPU, which one process has for itself; to train packs "
            "there, begin a session with KERAS_BACKEND=jax"
        )
    return why_none(isolate=isolate)


def _why_in_session(tuner: Mapping[str, Any]) -> str | None:
    """The same by the arguments of ``Tuner``."""
    storage = tuner["storage"]
    url = storage if isinstance(storage, str | None) else getattr(storage, "url", None)
    if not isinstance(storage, str | None | RDBStorage | JournalStorage):
        return f"storage: a {type(storage).__name__} is known to this process alone; pass a URL"
    if url is not None and url.startswith("sqlite") and (":memory:" in url or url.endswith("//")):
        return "storage: this database is in the memory of this process; pass that of a file"
    return None


def write(stream: str, text: str) -> None:
    """Writes a text to a stream of ``sys``, by its name."""
    getattr(sys, stream).write(text)


class HeldOutput:
    """What a search prints and notes, held until it is sure that the search runs there.

    If the search cannot run there, the search in this process prints and notes all of it.
    """

    def __init__(self) -> None:
        self._held: list[Callable[[], Any]] | None = []  # None: nothing is held any more

    def later(self, action: Callable[[], Any]) -> None:
        """Does something once ``release`` was called."""
        if self._held is None:
            action()
        else:
            self._held.append(action)

    def say(self, stream: str, text: str) -> None:
        """Writes a text to a stream of ``sys``, later."""
        self.later(lambda: write(stream, text))

    def release(self) -> None:
        """Does what was held, and holds no more."""
        held, self._held = self._held or [], None
        for action in held:
            action()


@dataclass(eq=False, repr=False)
class SearchInProcess:
    """One search of a tuner, in the session's process."""

    kind: type  # ``Tuner``, which this module must not import
    tuner: dict[str, Any]  # the arguments of ``Tuner``
    search: dict[str, Any]  # the arguments of its ``search``
    enqueued: list[dict[str, Any]]
    listeners: Listeners
    builder: ModelBuilder
    # Reads the arguments of ``search``, for trials that train in this process.
    read: Callable[[Mapping[str, Any]], SearchArguments]
    trackers: Mapping[str, Tracker]
    # Whether the search is there because it may crash: it could run here as well.
    isolate: bool = False
    began: bool = (
        False  # whether the search writes: the arguments are those with which it continues
    )
    summary: dict[str, Any] = field(default_factory=dict)
    fold_data: tuple[Any, Any] = ((), None)  # folds, and validation data
    _overwrote: bool = False  # whether the study was started over
    _hung: str | None = None  # what does not come back, if another process cannot continue
    _output: HeldOutput = field(default_factory=HeldOutput)
    _deaths: DeathRecord = field(default_factory=DeathRecord)
    _kills: OutOfMemoryKills = field(default_factory=OutOfMemoryKills)
    _ahead: TextAhead | None = None  # layers for text that have run over the data

    def run(self) -> str | None:
        """Searches; returns why the session must continue the search, or None: it has ended.

        Raises what the search raises. An isolated search also raises UsageError if it cannot run
        there, and TrialCrashError if processes die again and again.
        """
        why = _why_in_session(self.tuner) or why_in_session(self.search, isolate=self.isolate)
        try:
            if why is None and not self.isolate:
                self._ahead = self._text_ahead()
        except ValueError as error:
            why = str(error)
        if why is None:
            why = self._in_processes()
        if why is not None and self.isolate:
            raise UsageError(
                f"isolate: this search can't run in another process: {why}. Change that, or remove "
                "isolate=True."
            )
        if why is None:
            self._output.release()
        elif self._overwrote and not any(
            self.summary.get("n_trials", {}).get(state) for state in ("complete", "pruned")
        ):
            self.tuner["overwrite"] = True  # the study of before has come back
        return why

    def _in_processes(self) -> str | None:
        """Searches in one process after the other, until one ends by itself; as ``run``."""
        leave_memory_to_packs(self.listeners.notes)
        ends_at, hangs = None, 0
        if self.search.get("timeout") is not None:
            ends_at = time.monotonic() + self.search["timeout"]
        while True:
            self.listeners.stop.check()
            with process_of_session() as process:
                try:
                    return self._once(process)
                except CannotSendError as error:
                    return f"it cannot be sent to another process: {error}"
                except TrialHangError:
                    # Its threads are lost. Another process continues without what is stuck there.
                    process.close()
                    hangs += 1
                    if self._hung is not None or hangs > _HANGS:
                        raise
                except ProcessDiedError as died:
                    if (why := self._died(died, process)) is not None:
                        return why
            if ends_at is not None:
                self.search["timeout"] = max(0.001, ends_at - time.monotonic())

    def _once(self, process: JaxProcess) -> str | None:
        try:
            search, data = sent_arguments(self.search, self._ahead)
        except ValueError as error:  # of the text in the data
            return str(error)
        arguments = {
            "kind": self.kind,
            "tuner": {**sent_tuner(self.tuner, self._ahead), "trackers": list(self.trackers)},
            "search": search,
            "enqueued": self.enqueued,
            "watched": self.listeners.progress is not None,
            "isolated": self.isolate,
            "displays": notebook_display() is not None,
        }
        process.box.reset(self._deaths.to_json())
        if self.isolate:
            self._output.release()
        call = ProcessCall(search_in_process, arguments, _outside(self.tuner, self.search))
        listeners, precision = self.listeners, self.tuner["precision"]
        read = partial(self.read, dict(self.search))
        fits = SessionFits(process, self.builder, read, precision, listeners.notes, listeners.stuck)
        trackers = TrackersOfSession(self.trackers)
        functions = {
            "begin": self._begin,
            "hang": partial(self._hang, process),
            **data,
            **fits.functions,
            **trackers.functions,
            "note": lambda text: self._output.later(lambda: listeners.notes(text)),
            "display": publish,
            "progress": listeners.progress or (lambda progress: None),
            "searched": self._searched,
        }
        try:
            return process.call(call, functions, self._output.say, listeners.stop)
        except CannotSendError:
            raise
        except ProcessDiedError:
            if self._hung is not None:
                raise TrialHangError(self._hung) from None
            raise
        except BaseException:
            self._output.release()
            raise
        finally:
            trackers.end_call()
            self._note_begun(process)

    def _text_ahead(self) -> TextAhead | None:
        seed, precision = self.tuner["seed"], self.tuner["precision"]
        # These look at models.
        looks = self.tuner["constraints"] is not None or isinstance(self.tuner["objective"], list)
        first = HyperParameters()
        return TextAhead.of(self.builder, seed, first, precision, self.search, looks=looks)

    def _died(self, died: ProcessDiedError, process: JaxProcess) -> str | None:
        """Prepares another process; returns why none can continue, or None: one can."""
        self._output.release()
        self._deaths.add(died.code, process.box.state(), memory=self._kills.happened())
        if not self._deaths.hopeless:
            self.listeners.notes(self._deaths.note())
            return None
        why = self._deaths.note()
        if self.isolate:
            raise TrialCrashError(f"{why}. {self._deaths.what_to_do}") from died
        return why

    # -- what the process tells and asks ---------------------------------------------------------

    def _begin(self, n_trials: int | None) -> None:
        self.began = True
        self._output.release()
        # As the process that continues this search must have it.
        self._overwrote = self._overwrote or self.tuner["overwrite"]
        self.tuner["overwrite"], self.enqueued = False, []
        if isinstance(self.search.get("n_trials"), str):
            self.search["n_trials"] = n_trials

    def _note_begun(self, process: JaxProcess) -> None:
        """Takes over from the black box that the search has begun: an isolated one does not say."""
        if (begun := process.box.state().get("begun")) is not None:
            self._begin(begun["n_trials"])

    def _hang(self, process: JaxProcess, text: str, again: bool) -> None:
        self._hung = None if again else text
        if self.listeners.on_hang is not None:
            self.listeners.on_hang(text, again)
        self._note_begun(process)
        process.close()

    def _searched(self, summary: dict[str, Any], fold_data: tuple[Any, Any]) -> None:
        self.summary, self.fold_data = summary, fold_data
        if self._ahead is not None:  # models read the text itself
            self.fold_data = fold_data[0], None


def _outside(tuner: Mapping[str, Any], search: Mapping[str, Any]) -> OutsideState:
    """What the user's functions among the arguments may change."""
    roots = {name: tuner[name] for name in ("build", "constraints", "sampler", "pruner")}
    roots |= {n: value for n, value in search.items() if n == "callbacks" or callable(value)}
    return OutsideState.of(roots)


def reproduced(kind: type, tuner: Mapping[str, Any], number: int, search: Mapping[str, Any]) -> Any:
    """What ``Tuner.reproduce`` finds in the session's process; None where this one must train."""
    if _why_in_session(tuner) or why_in_session(search):
        return None
    try:
        builder, precision = ModelBuilder(tuner["build"]), tuner["precision"]
        first = HyperParameters()
        ahead = TextAhead.of(builder, tuner["seed"], first, precision, search, looks=False)
        given, data = sent_arguments(search, ahead)
    except ValueError:
        return None
    # Nothing is logged.
    alone = {**sent_tuner(tuner, ahead), "trackers": None}
    arguments = {"kind": kind, "tuner": alone, "number": number, "search": given}
    call = ProcessCall(reproduce_in_process, arguments, _outside(tuner, search))
    held = HeldOutput()
    try:
        with StopSignal.of_process() as stop, process_of_session() as process:
            return process.call(call, data, held.say, stop)
    except (CannotSendError, ProcessDiedError):
        return None
    finally:
        held.release()


def sent_tuner(tuner: Mapping[str, Any], ahead: TextAhead | None) -> dict[str, Any]:
    """Arguments of ``Tuner`` as they are sent."""
    if ahead is None:
        return dict(tuner)
    return {**tuner, "build": BuildBehindLayers(tuner["build"], ahead.sent)}


def sent_arguments(
    search: Mapping[str, Any], ahead: TextAhead | None = None
) -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
    """Arguments of ``search`` as they are sent, and what the process calls to read data sets.

    Raises ValueError if text among them cannot be sent as numbers.
    """
    data = DataOfSession(search)
    if ahead is not None:
        data = DataOfSession(search, ahead.batch)
        search = ahead.arrays(search)
    arrays = {name: as_arrays(search[name]) for name in DATA if name in search}
    return {**search, **arrays, **data.sent()}, {"open_data": data.open, "read_data": data.read}


def as_arrays(value: Any) -> Any:
    """Tensors of other backends as arrays, which are shared with the other process."""
    if isinstance(value, list | tuple):
        return type(value)(map(as_arrays, value)) if type(value) in (list, tuple) else value
    if isinstance(value, Mapping):
        return {key: as_arrays(part) for key, part in value.items()}
    package = type(value).__module__.partition(".")[0]
    if package in ("tensorflow", "torch") and hasattr(value, "shape"):
        return keras.ops.convert_to_numpy(value)
    return value
