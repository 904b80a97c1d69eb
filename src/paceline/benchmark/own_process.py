"""A benchmark in a session whose Keras does not run on JAX: in its own process, as its searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from paceline.benchmark.presentation.result import Bench
from paceline.errors import DataError, UsageError
from paceline.executor.process import StopSignal
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import ProcessCall
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import (
    CannotSendError,
    ProcessDiedError,
    process_of_session,
)
from paceline.executor.tf_replicas import leave_memory_to_packs
from paceline.tuner.search.own_process import DATA, as_arrays, why_in_session, write
from paceline.tuner.search.session import what_stands_in_the_way

#: Whether this process measures on any backend: ``paceline bench`` starts one for each.
HERE: ContextVar[bool] = ContextVar("HERE", default=False)


def measured(
    bench: Callable[..., Bench], given: Mapping[str, Any], note: Callable[[str], None]
) -> Bench | None:
    """The result of ``bench`` with the arguments ``given``; None where this process must measure.

    ``bench`` is that of ``api``. ``note`` is told why. Raises as ``bench``.
    """
    if HERE.get():
        return None
    why = why_in_session(given)
    if why is None:
        leave_memory_to_packs(note)
        arrays = {name: as_arrays(given[name]) for name in DATA}
        arguments = {"bench": bench, "given": {**given, **arrays, "on_note": None}}
        call = ProcessCall(_measure, arguments, OutsideState.of({"build": given["build"]}))
        try:
            with StopSignal.of_process() as stop, process_of_session() as process:
                found = process.call(call, {"note": note}, write, stop)
        except CannotSendError as error:
            found = f"it cannot be sent to another process: {error}"
        except ProcessDiedError as error:
            found = str(error)
        if isinstance(found, Bench):
            return found
        why = found
    note(f"Keras' fit is measured in this process, since trials of it cannot train in packs: {why}")
    return None


def _measure(
    link: SessionLink, bench: Callable[..., Bench], given: Mapping[str, Any]
) -> Bench | str:
    """The result, or why there is none on JAX."""
    try:
        found = bench(**{**given, "on_note": partial(link.tell, "note")})
    except (UsageError, DataError):
        raise
    except Exception as error:  # of the user's build, or of steps that JAX cannot run
        return what_stands_in_the_way(error)
    run = found.runs[0]
    if run.measured or run.interrupted:
        return found
    return "; ".join(dict.fromkeys(cell.reason for cell in run.cells if cell.reason))
