"""A search in the process that its session has started: what it tells the session, and asks it."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from paceline.errors import PacelineError
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.wall.black_box import BlackBox
from paceline.pack.callbacks.reachable import is_users_file
from paceline.program.canonical import Unpackable
from paceline.program.numbers import number_settings
from paceline.search_space import HyperParameters
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.search.session_data import SessionDataset

if TYPE_CHECKING:
    from paceline.executor.session.child import SessionLink


class ReturnedToSession(BaseException):
    """Something of the search cannot train in this process; the message says what.

    No ``except Exception`` of the search or the user's code catches it: the search ends, and the
    session goes on with it.
    """


class SearchSession:
    """The session of a search that runs in the session's own process."""

    #: The session of the search that this process runs; None in other processes.
    current: SearchSession | None = None

    def __init__(self, link: SessionLink) -> None:
        self._link = link
        self.began = False  # whether the study is searched: before, nothing is written

    @classmethod
    @contextmanager
    def of(cls, link: SessionLink) -> Iterator[SearchSession]:
        """A block in which searches of this process are of a session."""
        cls.current = session = cls(link)
        try:
            yield session
        finally:
            cls.current = None

    def begin(
        self, arguments: SearchArguments, builder: ModelBuilder, hp: HyperParameters, seed: int
    ) -> None:
        """The search is checked, and will write, unless its first model cannot be packed.

        ``hp`` are those of the first model.
        """
        if (data := arguments.pack_data) is None:
            raise ReturnedToSession(arguments.why_fit or "the data are no arrays")
        packs = LocalExecutor(data)
        try:
            hp = HyperParameters(values=hp.hparams)
            model = builder(hp, seed)
            packs.pretrace(model, arguments.inputs_for(hp, model))
            if not number_settings()["jax_enable_x64"] and any(
                variable.dtype == "float64" for variable in model.variables
            ):
                raise Unpackable(
                    "the model has float64 variables, of which JAX makes float32; build it in "
                    "float32, or call jax.config.update('jax_enable_x64', True) before"
                )
        except Exception as error:  # what the user's steps raise, among others
            raise ReturnedToSession(what_stands_in_the_way(error)) from None
        finally:
            packs.close()
        self.began = True
        self._link.tell("begin", arguments.n_trials)

    def refuse(self, number: int, why: BaseException | str) -> None:
        """Ends the search here, since a trial of it must train in the session."""
        text = why if isinstance(why, str) else what_stands_in_the_way(why)
        raise ReturnedToSession(f"trial {number}: {text}")

    def check_build(self, number: int, hparams: Mapping[str, Any], seed: int, error: Any) -> None:
        """Ends the search here if the build that failed works in the session."""
        if self._link.ask("builds", dict(hparams), seed):
            self.refuse(number, error)


@contextmanager
def watched_by(link: SessionLink) -> Iterator[None]:
    """A block whose search notes what is under way in the black box that the session reads."""
    BlackBox.current = BlackBox(link.box)
    try:
        yield
    finally:
        BlackBox.current = None


def search_in_process(
    link: SessionLink,
    kind: type,
    tuner: Mapping[str, Any],
    search: Mapping[str, Any],
    enqueued: list[dict[str, Any]],
    *,
    watched: bool,
    isolated: bool,
) -> str | None:
    """Searches in this process; returns why the session must go on with the search, or None.

    ``tuner`` are the arguments of ``kind``, which is ``Tuner``, and ``search`` those of its method.
    ``watched``: the session wants to see how the search goes. ``isolated``: it is on JAX as well,
    so that nothing is left to it.
    """
    ours: Any = kind(
        **tuner,
        on_note=partial(link.tell, "note"),
        on_progress=partial(link.ask, "progress") if watched else None,
        on_hang=partial(link.tell, "hang"),
    )
    for hparams in enqueued:
        ours.enqueue(hparams)
    try:
        with watched_by(link):
            if isolated:
                ours.search(**read_by(link, search))
                return None
            return why_returned(link, lambda: ours.search(**read_by(link, search)))
    finally:
        link.tell("searched", *ours._last_search())


def reproduce_in_process(
    link: SessionLink, kind: type, tuner: Mapping[str, Any], number: int, search: Mapping[str, Any]
) -> Any:
    """As ``Tuner.reproduce``; the arguments are those of ``search_in_process``."""
    return kind(**tuner).reproduce(number, **read_by(link, search))


def why_returned(link: SessionLink, search: Callable[[], None]) -> str | None:
    """Calls a function that searches; returns why the session must go on with it, or None.

    Raises what the search raises once it has begun.
    """
    with SearchSession.of(link) as session:
        try:
            search()
        except ReturnedToSession as why:
            return str(why)
        except Exception as error:
            if session.began:
                raise
            # Nothing is written. The session raises the same error, unless the backend is why.
            return what_stands_in_the_way(error)
    return None


def read_by(link: SessionLink, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with data sets in the places of those that stand for them."""
    return {
        name: value.read_by(link) if isinstance(value, SessionDataset) else value
        for name, value in arguments.items()
    }


#: A call of another backend's library, as people write it.
_CALLED = re.compile(r"\b(?:tf|tensorflow|torch)\.(?:\w+\.)*(\w+)(?=\()")
#: Characters of an error's text that a note holds at most.
_MOST = 200


def what_stands_in_the_way(error: BaseException) -> str:
    """Why code does not run on JAX, on which line, and what to write instead."""
    # An error in Keras' handling of an error has the user's lines in its context alone.
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    first = causes[-1]
    name = "" if isinstance(first, PacelineError | Unpackable) else f"{type(first).__name__}: "
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(first)).partition("\n\nArguments received by")[0]
    text = name + " ".join(said.split())
    text = f"{text[:_MOST]} ..." if len(text) > _MOST else text
    frame = next(filter(None, map(_users_frame, reversed(causes))), None)
    if frame is None:
        return text
    line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    where = f"line {frame.lineno} of {frame.filename}"
    calls = {match[0]: match[1] for match in _CALLED.finditer(line)}
    if not calls:
        return f"{text} ({where}{f': {line}' if line else ''})"
    instead = [f"keras.ops.{of}" for of in calls.values() if hasattr(keras.ops, of)]
    hint = f". Write {', '.join(instead)} instead" if instead else ""
    return f"{where} calls {', '.join(calls)}, which a program of JAX cannot hold{hint}"


def _users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of an error that is in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((each for each in reversed(frames) if is_users_file(each.filename)), None)
