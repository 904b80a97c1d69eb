"""The only module with private names of Optuna, as of Optuna 4.0 to 5.0.

``Study._thread_local.in_optimize_loop``, ``Study._stop_flag``
    ``study.stop()`` raises unless the first is set in its thread, and sets the second. Samplers,
    objectives and callbacks call it. Our own ``stop`` on the study would break ``pickle`` of a
    study in a callback.
``Study._storage``, ``Trial._trial_id``
    a storage records the heartbeat of a trial, and closes the session of a thread.
``_CachedStorage._backend``
    holds the database of a storage, whose URL says whether it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna


@contextmanager
def optimizing(study: optuna.Study) -> Iterator[None]:
    """A block in which ``study.stop()`` works in this thread, as within ``Study.optimize``."""
    local = study._thread_local
    before, local.in_optimize_loop = local.in_optimize_loop, True
    try:
        yield
    finally:
        local.in_optimize_loop = before


def is_optimizing(study: optuna.Study) -> bool:
    """Whether this thread is within ``Study.optimize``."""
    return bool(study._thread_local.in_optimize_loop)


def forget_stop(study: optuna.Study) -> None:
    """Forgets earlier calls of ``study.stop()``."""
    study._stop_flag = False


def has_stopped(study: optuna.Study) -> bool:
    """Whether ``study.stop()`` was called."""
    return bool(study._stop_flag)


def end_session(study: optuna.Study) -> None:
    """Frees the connection that this thread has to the study's database."""
    study._storage.remove_session()


def heartbeat_interval(study: optuna.Study) -> float | None:
    """Returns the seconds between two heartbeats of a trial; None if the storage wants none."""
    interval = getattr(study._storage, "get_heartbeat_interval", None)
    return None if interval is None else interval()


def record_heartbeat(study: optuna.Study, trial: optuna.Trial) -> None:
    """Records that a trial is alive."""
    storage: Any = study._storage
    storage.record_heartbeat(trial._trial_id)


def is_in_one_thread(study: optuna.Study) -> bool:
    """Whether only the thread that made the study sees it: SQLite in memory, one per connection."""
    backend = getattr(study._storage, "_backend", study._storage)
    url = str(getattr(backend, "url", ""))
    return url.startswith("sqlite:") and (
        url in ("sqlite://", "sqlite:///") or ":memory:" in url or "mode=memory" in url
    )
