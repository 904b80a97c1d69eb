"""A search of a tuner in the session's own process, if the session's Keras is not on JAX.

The tuner is sent to the process, which writes the project's files. When the tuner comes back, its
oracle, its trials and the user's own attributes are as if it had searched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.compat.keras_tuner import oracle_search
from paceline.compat.keras_tuner.engine.hypermodel import own_code
from paceline.compat.keras_tuner.engine.model_tuner import ModelTuner
from paceline.executor.leading_layers import LayersAhead
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import ProcessCall
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import (
    CannotSendError,
    ProcessDiedError,
    process_of_session,
)
from paceline.executor.tf_replicas import is_spread, leave_memory_to_packs
from paceline.executor.wall.deaths import DeathRecord, OutOfMemoryKills
from paceline.report.notebook import notebook_display, publish
from paceline.tuner.search.own_process import HeldOutput, sent_arguments, why_in_session
from paceline.tuner.search.progress import to_stderr
from paceline.tuner.search.session import read_by, watched_by, why_returned
from paceline.tuner.session.text_ahead import TextAhead


def search(tuner: ModelTuner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Runs the trials of a tuner's oracle there; returns why they must run here, or None.

    ``args`` and ``kwargs`` are those of ``model.fit``. Raises as ``oracle_search.search``.
    """
    fit = oracle_search.as_fit_reads(args, kwargs)
    strategy = tuner.distribution_strategy
    why = why_in_session(fit)
    if why is None and strategy is not None and is_spread(strategy):
        why = "distribution_strategy: TensorFlow trains in this process"
    if why is not None:
        return why
    leave_memory_to_packs(to_stderr)
    tuner.distribution_strategy = None  # it cannot be sent
    try:
        return _search(tuner, fit)
    finally:
        tuner.distribution_strategy = strategy


def _search(tuner: ModelTuner, fit: Mapping[str, Any]) -> str | None:
    held, began, ahead = HeldOutput(), False, None
    try:
        first = tuner.oracle.get_space()
        builder, seed = ModelBuilder(tuner._try_build), tuner.oracle.seed
        ahead = TextAhead.of(builder, seed, first, None, fit, looks=False)
        given, data = sent_arguments(fit, ahead)
    except ValueError as error:
        return str(error)

    def begin(n_trials: int | None) -> None:
        nonlocal began
        began = True
        held.release()

    def builds(hparams: dict[str, Any], seed: int) -> bool:
        hp = tuner.oracle.get_space()
        hp.values |= hparams
        try:
            tuner._try_build(hp)
        except Exception:  # the user's code may raise anything
            return False
        return True

    sent, displays = None if ahead is None else ahead.sent, notebook_display() is not None
    arguments = {"tuner": tuner, "fit": given, "ahead": sent, "displays": displays}
    functions = {"begin": begin, "builds": builds, "display": publish, **data}
    record, kills = DeathRecord(), OutOfMemoryKills()
    while True:
        call = ProcessCall(_search_in_process, arguments, _outside(tuner, fit))
        try:
            with StopSignal.of_process() as stop, process_of_session() as process:
                process.box.reset(record.to_json())
                try:
                    return process.call(call, functions, held.say, stop)
                except ProcessDiedError as died:
                    record.add(died.code, process.box.state(), memory=kills.happened())
        except CannotSendError as error:
            return f"the tuner cannot be sent to another process: {error}"
        except BaseException:
            held.release()
            raise
        held.release()
        if began:
            tuner.reload()  # the project has all finished trials
            tuner.oracle.take_back()
        if record.hopeless:
            return record.note()
        to_stderr(record.note())


def _outside(tuner: ModelTuner, fit: Mapping[str, Any]) -> OutsideState:
    """What the user's functions may change; the tuner is changed in any case."""
    model = tuner.hypermodel
    code = {"hypermodel": own_code(model), "build": model.build}
    called = [name for name in {*dir(tuner), *dir(model)} if not name.startswith("__")]
    state = OutsideState.of({"tuner": tuner, **code, **fit}, called)
    return OutsideState({**state.objects, "tuner": tuner}, state.names)


def _search_in_process(
    link: SessionLink,
    tuner: ModelTuner,
    fit: Mapping[str, Any],
    ahead: LayersAhead | None,
    displays: bool,
) -> str | None:
    def search() -> None:
        oracle_search.search(tuner, read_by(link, fit), ahead)

    with watched_by(link):
        return why_returned(link, search, displays=displays)
