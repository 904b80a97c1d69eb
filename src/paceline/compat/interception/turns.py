"""Decides whether functions take turns, so that their fits train together, or run one at a time.

Functions that take turns begin before others have ended. What they share, each must find as it
would if those before it had ended. Three things tell, in ``sharing/``:

- what their code and the objects that it reaches show before the first begins (``hazards.py``). If
  they touch what they change after their fits alone, they wait there for those before them
  (``gates.py``), and nothing else follows from it;
- what has changed when the first function waits in its fit, before a second one begins
  (``shared_state.py``). Layers that were made outside are compared when the first function has
  ended, and until then it runs alone;
- what two running fits both need (``claims.py``). Before the later one does anything, it waits for
  the end of the earlier one's function. That function may read a file that its fit has written.

From the first sign on, functions run one at a time, and a note says why.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from paceline.compat.interception.function_thread import FunctionThread, can_trace
from paceline.compat.interception.sharing import hazards
from paceline.compat.interception.sharing.claims import ObjectClaims, paths
from paceline.compat.interception.sharing.gates import Gates
from paceline.compat.interception.sharing.shared_state import SharedState
from paceline.errors import UsageError
from paceline.pack.callbacks.per_trial import place_of
from paceline.pack.callbacks.reachable import ReachableObjects, reached


class ConcurrencyPolicy:
    """Decides whether a function may begin while others run, and whose fit waits.

    ``concurrent`` is that of ``Engine``, and ``noun`` what notes call a function. ``together``:
    whether there are packs. Without them no function begins while another one is in its fit.
    """

    def __init__(
        self, concurrent: bool | None, say: Callable[[str], None], noun: str, *, together: bool
    ) -> None:
        # Whether no function may begin while another one runs.
        self.alone = check_concurrent(concurrent) is False
        self._watches = self._uses_claims = concurrent is None and together
        self._say, self._noun = say, noun
        self._looked_at: set[Any] = set()
        self._found = ReachableObjects()
        self._before: SharedState | None = None
        self._first: FunctionThread | None = None
        self._claims = ObjectClaims()
        self.gates: Gates = {}  # lines at which functions wait for those before them
        self._touched = ""  # why they do
        self._stale = False  # whether one that has passed a gate has run since ``_before``

    # -- before a function begins ------------------------------------------------------------------

    def look(self, function: Any) -> None:
        """Looks at the function of a call, unless one with the same code was looked at."""
        while isinstance(function, functools.partial):
            function = function.func
        self.look_at({getattr(function, "__name__", "function"): function})

    def look_at(self, roots: Mapping[str, Any], entries: Iterable[str] = ("__call__",)) -> None:
        """Looks at the user's code, with the arguments of ``Engine.look_at``."""
        key = frozenset(getattr(root, "__code__", id(root)) for root in roots.values())
        if not self._watches or key in self._looked_at:
            return
        self._looked_at.add(key)
        self._found = reached(roots, entries)
        self._before, self._first = None, None
        why = hazards.why_one_at_a_time(self._found) or hazards.depends_on_earlier(self._found)
        if why is not None:
            self._one_at_a_time(why)
            return
        touched, gates = hazards.why_in_order(self._found)
        first_look = hazards.needs_a_first_look(self._found)
        if touched is not None or self.gates:
            # Functions of two kinds may touch what the code of one of them alone changes.
            if not gates or len(self._looked_at) > 1 or first_look or not can_trace():
                several = "functions of several kinds change what is made outside of them"
                self._one_at_a_time(touched or several)
                return
            self.gates, self._touched = gates, str(touched)
        reader = hazards.clock_reader(self._found)
        if reader is not None:
            self._say(
                f"{reader} reads the clock: other {self._noun}s train between its readings, which "
                f"makes its times longer than those of a {self._noun} alone. "
                "With concurrent=False, one runs at a time"
            )
        self.alone = first_look

    def begins(self, thread: FunctionThread) -> None:
        """Notes the state of what functions share, before the first of them begins."""
        if self._watches and self._before is None:
            self._before, self._first = SharedState(self._found, arrays=True), thread
            self._stale = False

    def resumes(self, thread: FunctionThread, n_under_way: int) -> None:
        """Compares what functions share before what one changes in order changes it, too."""
        if self._stale and self._before is not None and not thread.passed:
            self._before = SharedState(self._found, arrays=False)
            self._stale = False
        elif thread.passed or thread.waits_for is not None:
            self._compare(n_under_way - 1)

    # -- while functions run -----------------------------------------------------------------------

    def waits_for(
        self, thread: FunctionThread, model: Any, callbacks: list[Any], n_under_way: int
    ) -> FunctionThread | None:
        """Returns the function whose end a fit of ``thread`` must wait for; None if it may begin.

        ``n_under_way`` is the number of functions that run.
        """
        if thread.passed and not thread.outcome.fits:
            self._one_at_a_time(self._touched)  # it waited with its model, as all others would
        if not self._uses_claims:
            return None
        if n_under_way == 1 and self._watches and not self.alone:
            self._look_at_paths(callbacks)
        self._part_logs(thread, callbacks)
        held = self._claims.other_holder(thread, model, callbacks)
        if held is None:
            self._claims.take(thread, model, callbacks)
            return None
        self._one_at_a_time(held[1])
        return None if self.waits_in_turn(held[0], thread) else held[0]

    def waits_in_turn(self, other: FunctionThread, thread: FunctionThread) -> bool:
        """Whether ``other`` waits for the end of ``thread``, which must then continue: a note."""
        further: FunctionThread | None = other
        while further is not None and further is not thread:
            further = further.waits_for
        if further is thread:
            self._say(
                f"{self._noun} {thread.outcome.number} and {self._noun} {other.outcome.number} "
                "wait for what the other one holds. One of them continues, and its result may "
                "differ: pass concurrent=False"
            )
        return further is thread

    def built(self, thread: FunctionThread, model: Any, callbacks: list[Any]) -> None:
        """Notes the variables that a fit has made."""
        if self._uses_claims:
            self._claims.take(thread, model, callbacks)

    def stopped(self, thread: FunctionThread, n_under_way: int) -> None:
        """Compares what functions share with its state before, now that one waits or has ended.

        ``n_under_way`` is the number of functions that run, without this one if it has ended.
        """
        if thread.ended:
            self._claims.drop_ended()
        if thread.passed:
            self._stale = True  # what it changes from here on, the others find in order
        elif thread.ended or thread.n_turns == 1:
            self._compare(n_under_way - (not thread.ended))
            if self._before is None or thread is not self._first:
                return
            if self.alone and thread.ended:  # it ran to its end, and layers are as before
                self._claims.leave_out(self._before.constants())
                self.alone = False
            if not self.alone:
                self._before, self._first = SharedState(self._found, arrays=False), None

    def at_gate(self, n_under_way: int) -> None:
        """Compares what functions share, now that one is to touch it."""
        self._compare(n_under_way - 1)

    def _compare(self, n_others: int) -> None:
        """Looks for changes in no order; ``n_others`` functions run beside the one that stops."""
        if self._stale or self._before is None:
            return
        what = self._before.changed()
        if what is not None and n_others == 0:
            self._one_at_a_time(f"one of them changed {what!r}, which is made outside of it")
        elif what is not None:
            self._one_at_a_time(
                f"one of them changed {what!r}, which is made outside of it, while "
                f"other {self._noun}s ran. Their results may differ from those of {self._noun}s "
                "that run one after the other. Pass concurrent=False to be sure"
            )

    def _look_at_paths(self, callbacks: list[Any]) -> None:
        """Looks at the paths of the first fit, while no other function has begun."""
        own = [each for each in callbacks if not type(each).__module__.startswith("paceline.")]
        mine = paths(own)
        same = mine.keys() & hazards.constant_paths(self._found) if mine else set()
        for path in sorted(same):
            self._one_at_a_time(
                f"{mine[path]} writes to {path!r}, a path that is the same each time"
            )
        if hazards.clock_reader(self._found) is None:
            return
        for path in filter(hazards.is_named_by_clock, mine.keys() - paths(self._logs(callbacks))):
            self._one_at_a_time(
                f"{mine[path]} writes to {os.path.relpath(path)!r}, which the clock names, so that "
                f"{self._noun}s that begin together would write to one path"
            )

    def _logs(self, callbacks: list[Any]) -> list[Any]:
        """Those of the callbacks whose paths the clock names, and whose files nobody reads."""
        reads = hazards.reads_files(self._found)
        written = keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint
        kinds = (keras.callbacks.TensorBoard, *(() if reads else written))
        found = [each for each in callbacks if isinstance(each, kinds)]
        return [each for each in found if any(map(hazards.is_named_by_clock, paths([each])))]

    def _part_logs(self, thread: FunctionThread, callbacks: list[Any]) -> None:
        """Gives a fit a path of its own for a log that the clock has named as another one's."""
        for callback in self._logs(callbacks):
            name, is_file = place_of(callback) or ("", False)
            first = path = Path(getattr(callback, name))
            stem, suffix = (first.stem, first.suffix) if is_file else (first.name, "")
            numbers = itertools.count(1)
            while not self._claims.is_free(str(path), thread):
                path = first.with_name(f"{stem}-{next(numbers)}{suffix}")
            if path != first:
                setattr(callback, name, str(path))
                self._say(
                    f"{self._noun}s begin together, so the clock names one path for several of "
                    f"them. {type(callback).__name__} of the later ones writes to that path with "
                    "-1, -2 and so on at its end"
                )

    def _one_at_a_time(self, why: str) -> None:
        if not self._watches:
            return  # they do already
        self.alone, self._watches, self._before = True, False, None
        self._say(
            f"{self._noun}s run one at a time, in order: {why}. Create one in each "
            f"{self._noun}, or pass concurrent=True to train them together anyway"
        )


def check_concurrent(value: Any) -> bool | None:
    """Returns the argument ``concurrent`` if it is one that there is, else raises UsageError."""
    if not (value is None or isinstance(value, bool)):
        raise UsageError(
            f"concurrent: {value!r} is not True, False or None; False runs one function after "
            "another."
        )
    return value
