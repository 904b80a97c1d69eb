"""What callbacks share although every trial has its own copies: globals, closures, files, runs.

In ``fit`` these belong to one trial after another. The trials of a pack take turns after every
epoch, so that one would read what another has left there, or log to another's run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from paceline.pack.callbacks.changes import TRACKERS, changed, rebound, trackers, written
from paceline.pack.callbacks.reachable import UserFunction, reached

#: Trackers that ``Tuner(trackers=...)`` knows.
_KNOWN = frozenset({"mlflow", "wandb"})
_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


def why_not_in_turns(
    callbacks: Sequence[Any], function: Callable[[Any], Any] | None = None
) -> str | None:
    """Why trials with these callbacks must train one after another, for the user.

    None: nothing shows it. ``function``: the function of hp that makes the callbacks instead.
    """
    for callback in callbacks:
        package = type(callback).__module__.partition(".")[0]
        if package in TRACKERS:
            return _of_tracker(type(callback).__name__, package)
    for user in _functions(callbacks, function):
        package = next(trackers(user), None)
        if package is not None:
            return _of_tracker(user.name, package)
        name = next(rebound(user), None)
        if name is not None:
            return f"callbacks: {user.name} assigns {name!r}, which all trials share"
    return None


def in_turns(callbacks: Sequence[Any], function: Callable[[Any], Any] | None = None) -> str | None:
    """What packed trials write to in turns, a sentence for the user; None: nothing shows it.

    ``function``: the function of hp that makes the callbacks instead.
    """
    for user in _functions(callbacks, function):
        what = next(_outside(user), None)
        path = next((path for path in written(user) if "{trial}" not in path), None)
        if what is None and path is not None:
            what = f"the file {path!r}"
        if what is not None:
            return (
                f"callbacks: {user.name} changes {what}, which all trials share. The trials of a "
                "pack take turns after every epoch. If that matters, use executor='fit' to train "
                "trials one after another"
            )
    return None


def _functions(
    callbacks: Sequence[Any], function: Callable[[Any], Any] | None
) -> Iterator[UserFunction]:
    """Yields the user's functions that run while a trial trains, as far as names show them."""
    roots: dict[str, Any] = {} if function is None else {"callbacks": function}
    for i, callback in enumerate(callbacks):
        label = f"{type(callback).__name__} {i}"
        roots[label] = callback
        # Functions that Keras' own callbacks are given, as LambdaCallback is.
        given = {name: part for name, part in vars(callback).items() if callable(part)}
        roots |= {f"{label}.{name}": part for name, part in given.items()}
    # What the function of hp itself binds is bound when it is called, not during training.
    yield from (user for user in reached(roots, _HOOKS).functions if user.function is not function)


def _outside(user: UserFunction) -> Iterator[str]:
    """Yields what the function changes that is not a part of its own callback, which was copied."""
    itself = user.function.__code__.co_varnames[:1] if user.shared_self else ()
    for what in changed(user):
        first, _, rest = what.strip("'").partition(".")
        if first not in itself or rest.partition(".")[0] == "__class__":
            yield what


def _of_tracker(name: str, package: str) -> str:
    text = f"callbacks: {name} logs to the current {package} run, which trials can't share"
    return (
        f"{text}. Use trackers={package!r} to keep trials in packs" if package in _KNOWN else text
    )
