"""A search in the process that its session has started: what it tells the session, and asks it."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

import keras

from paceline.errors import PacelineError
from paceline.executor.session.child import SessionLink
from paceline.pack.callbacks.reachable import is_users_file


class ReturnedToSession(BaseException):
    """Something of the search cannot train in this process; the message says what.

    No ``except Exception`` of the search or the user's code catches it: the search ends, and the
    session goes on with it.
    """


class SearchSession:
    """The session of a search that runs in the session's own process."""

    def __init__(self, link: SessionLink) -> None:
        self._link = link
        self.began = False  # whether the study is searched: before, nothing is written

    def begin(self, n_trials: int | None) -> None:
        """The search is checked, and will write; ``n_trials`` is the study's total."""
        self.began = True
        self._link.tell("begin", n_trials)

    def refuse(self, number: int, why: BaseException | str) -> None:
        """Ends the search here, since a trial of it must train in the session."""
        text = why if isinstance(why, str) else what_stands_in_the_way(why)
        raise ReturnedToSession(f"trial {number}: {text}")

    def check_build(self, number: int, hparams: Mapping[str, Any], seed: int, error: Any) -> None:
        """Ends the search here if the build that failed works in the session."""
        if self._link.ask("builds", dict(hparams), seed):
            self.refuse(number, error)


def search_in_process(
    link: SessionLink,
    tuner: Mapping[str, Any],
    search: Mapping[str, Any],
    enqueued: list[dict[str, Any]],
    *,
    watched: bool,
) -> tuple[str | None, dict[str, Any]]:
    """Searches in this process; returns why the session must train, or None, and the summary.

    ``tuner`` are the arguments of ``Tuner``, ``search`` those of its ``search``. ``watched``: the
    session wants to see how the search goes.
    """
    from paceline.tuner.tuner import Tuner

    session = SearchSession(link)
    ours = Tuner(
        **tuner,
        on_note=partial(link.tell, "note"),
        on_progress=partial(link.ask, "progress") if watched else None,
        on_hang=partial(link.tell, "hang"),
        _session=session,
    )
    for hparams in enqueued:
        ours.enqueue(hparams)
    try:
        ours.search(**search)
    except ReturnedToSession as why:
        return str(why), ours.summary
    except Exception as error:
        if session.began:
            raise
        # Nothing is written. The session raises the same error, or it has another backend's.
        return what_stands_in_the_way(error), ours.summary
    finally:
        link.tell("searched", ours.summary, ours.fold_data)
    return None, ours.summary


#: A call of another backend's library, as people write it.
_CALLED = re.compile(r"\b(?:tf|tensorflow|torch|K)\.(?:\w+\.)*(\w+)")


def what_stands_in_the_way(error: BaseException) -> str:
    """Why code does not run on JAX, on which line, and what to write instead."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    first = causes[-1]
    name = "" if isinstance(first, PacelineError) else f"{type(first).__name__}: "
    said = str(first).partition("\n\nArguments received by")[0]
    text = name + " ".join(re.sub(r"\x1b\[[0-9;]*m", "", said).split())
    if len(text) > 300:
        text = f"{text[:300]} ..."
    for cause in reversed(causes):
        frames = traceback.extract_tb(cause.__traceback__)
        for frame in reversed(frames):
            if is_users_file(frame.filename):
                line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
                where = f"line {frame.lineno} of {frame.filename}"
                return f"{text} ({where}: {line}{_instead(line)})" if line else f"{text} ({where})"
    return text


def _instead(line: str) -> str:
    """What to write in place of another backend's functions; empty where that is not known."""
    found = [
        f"keras.ops.{match[1]} in place of {match[0]}"
        for match in _CALLED.finditer(line)
        if hasattr(keras.ops, match[1])
    ]
    return f"; write {', '.join(found)}" if found else ""
