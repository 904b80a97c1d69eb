"""``trial_timeout``: no trial of a search takes longer than it may.

A trial's time is that of its build, that of tracing it, and that of its training on the clock, its
neighbours in the pack included; not that for which it waits for a slot or for a compiler. Where
Python code takes too long it is interrupted, and between epochs the trial is taken out. A compiled
step cannot be stopped: then the search must go on in another process.

Trials whose compiled step does not come back: remembered for the process that goes on.

A step that runs cannot be stopped from inside its process, so the process must end, and the search
goes on from its last checkpoint in another one. That one must not train the same trial again.
Where several trials trained side by side, one of them or all may be the reason: they are suspects,
and train one by one through the epoch that did not end.

Python code that must end in time: a user's build, or Keras' ``fit``, of one trial.

What waits inside compiled code or in another library cannot be interrupted; whoever calls is told
of that by another thread, while this one is still there.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from paceline.errors import PacelineError, StuckError, TrialTimeoutError
from paceline.executor.base import PackTimeout
from paceline.program.files import write_atomically
from paceline.study.study import Study
from paceline.study.trial_codec import plain

T = TypeVar("T")

#: Told why this process cannot go on, and whether another one can; it may end the process.
WhenStuck = Callable[[str, bool], None]


class TrialTimeout:
    """The limit of one search.

    Args:
        seconds: That a trial may take; None: as long as it likes.
        condemned: Trials that did not come back, in this process and those before.
        study: Their study.
        when_stuck: Called in a thread of its own when code of the main thread does not come back
            and cannot be interrupted.
    """

    def __init__(
        self, seconds: float | None, condemned: StuckTrials, study: Study, when_stuck: WhenStuck
    ) -> None:
        self.seconds, self.condemned = seconds, condemned
        self._study, self._when_stuck = study, when_stuck

    def verdict(self, number: int) -> TrialTimeoutError | None:
        """Why a trial is not to be trained at all; None where it is."""
        return self.condemned.verdict(number, self._study.trials.by_number(number).hparams)

    def build(self, call: Callable[[], T]) -> T:
        """Calls the user's build.

        Raises:
            TrialTimeoutError: It did not return in time.
        """
        return self._code(call, "build(hp) had not returned")

    def trace(self, call: Callable[[], T]) -> T:
        """Traces a trial; raises like ``build``."""
        return self._code(call, "tracing its steps had not ended")

    def fit(self, number: int, call: Callable[[], T]) -> T:
        """Trains a trial in Keras' ``fit``; raises like ``build``."""

        def stuck(text: str) -> None:
            self.condemned.condemn(number, self._study.trials.by_number(number).hparams, text)
            with contextlib.suppress(PacelineError):
                self._study.writer.flush()
            self._when_stuck(f"trial {number}: {text}", True)

        return run_with_timeout(self.seconds, call, self._text("its training had not ended"), stuck)

    def late(self, wall: float, epochs: int) -> TrialTimeoutError | None:
        """What ends a trial between two epochs; None where it has time.

        Args:
            wall: Seconds that it has trained.
            epochs: Epochs that it has trained.
        """
        if self.seconds is None or wall <= self.seconds:
            return None
        return TrialTimeoutError(
            f"trial_timeout: {wall:.3g} s for {epochs} epochs are more than {self.seconds:g} s"
        )

    def hung(self, hung: PackTimeout, team_of: Callable[[int], int]) -> Sequence[tuple[int, str]]:
        """Notes packs that do not come back.

        Args:
            hung: Their jobs.
            team_of: The trial of a job.

        Returns:
            Trials that are the reason for certain, and what to say of them.
        """
        certain = []
        for pack in hung.packs:
            trials = {team_of(job): epoch for job, epoch in pack.items()}
            if len(trials) > 1 and self.condemned.suspect(pack):
                continue
            for number, epoch in trials.items():
                text = self._text(f"epoch {epoch + 1} had not ended")
                self.condemned.condemn(number, self._study.trials.by_number(number).hparams, text)
                certain.append((number, text))
        return certain

    def error(self, hung: PackTimeout, team_of: Callable[[int], int]) -> StuckError:
        """What the search ends with after ``hung``."""
        trials = sorted({team_of(job) for pack in hung.packs for job in pack})
        names = ", ".join(map(str, trials))
        each = "it has failed" if len(trials) == 1 else "one of them, or several, must be why"
        return StuckError(
            f"trial_timeout: an epoch of trial{'s' if len(trials) > 1 else ''} {names} has not "
            f"ended after {self.seconds:g} s ({each})",
            "A step that runs cannot be stopped from "
            "inside its process: end this one (restart the kernel) and search again; the search "
            "goes on from its last checkpoint without what does not come back.",
        )

    def _code(self, call: Callable[[], T], what: str) -> T:
        return run_with_timeout(
            self.seconds, call, self._text(what), lambda text: self._when_stuck(text, False)
        )

    def _text(self, what: str) -> str:
        return f"trial_timeout: {what} after {self.seconds or 0:g} s"


class StuckTrials:
    """What is known of such trials, in a file.

    Args:
        path: Of the file; made when there is something to write.

    Attributes:
        suspects: Number of a job -> epochs it had trained when its pack did not come back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trials: dict[int, tuple[dict[str, Any], str]] = {}
        self.suspects: dict[int, int] = {}
        try:
            held = json.loads(path.read_text())
            self._trials = {int(n): (dict(h), str(text)) for n, (h, text) in held["trials"].items()}
            self.suspects = {int(n): int(epoch) for n, epoch in held["suspects"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # none, or one that another program has left there

    def condemn(self, number: int, hparams: Mapping[str, Any], text: str) -> None:
        """Remembers that a trial is not to be trained again, and why."""
        self._trials[number] = plain(dict(hparams)), text
        self._write()

    def suspect(self, epochs: Mapping[int, int]) -> bool:
        """Remembers jobs of a pack that did not come back, and the epochs that they had trained.

        Returns:
            Whether that is news; if not, suspicion does not help.
        """
        new = any(self.suspects.get(job) != epoch for job, epoch in epochs.items())
        self.suspects.update(epochs)
        self._write()
        return new

    def verdict(self, number: int, hparams: Mapping[str, Any]) -> TrialTimeoutError | None:
        """Why a trial is not to be trained; None where it is."""
        held, text = self._trials.get(number, ({}, ""))
        return TrialTimeoutError(text) if text and held == plain(dict(hparams)) else None

    def clear(self) -> None:
        """The search has come to its end."""
        self._trials.clear()
        self.suspects.clear()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        held = {
            "trials": {str(number): trial for number, trial in self._trials.items()},
            "suspects": {str(job): epoch for job, epoch in self.suspects.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(held).encode())


T = TypeVar("T")

#: Seconds between further attempts: code that catches everything may have caught the first.
_AGAIN = 0.5
#: Seconds, and share of the limit, after which code counts as one that cannot be interrupted.
_GRACE, _SHARE = 2.0, 0.1


#: Blocks entered that are not to be interrupted.
_shields: list[None] = []


@contextmanager
def shielded() -> Iterator[None]:
    """A block within such a function that is not interrupted; what comes after it is."""
    _shields.append(None)
    try:
        yield
    finally:
        _shields.pop()


class _Overtime(BaseException):
    """Raised inside the code; no ``except Exception`` catches it."""


def run_with_timeout(
    seconds: float | None,
    call: Callable[[], T],
    text: str,
    stuck: Callable[[str], None] | None = None,
) -> T:
    """Calls a function that may take so long.

    It is interrupted where a signal can do that: in the main thread, not on Windows, and as long as
    the program has no handler of SIGALRM of its own. Elsewhere it takes the time it takes.

    Args:
        seconds: None for no limit.
        call: The function.
        text: What the error says.
        stuck: Called in another thread with ``text`` when the function has not ended although
            there was a while to be interrupted.

    Raises:
        TrialTimeoutError: It took longer.
    """
    if seconds is None:
        return call()
    watch = None
    if stuck is not None:
        watch = threading.Timer(seconds + _GRACE + _SHARE * seconds, stuck, [text])
        watch.daemon = True
        watch.start()
    try:
        return _interrupted(seconds, call, text) if _can_interrupt() else call()
    finally:
        if watch is not None:
            watch.cancel()


def _can_interrupt() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    )


def _interrupted(seconds: float, call: Callable[[], T], text: str) -> T:
    armed, rung = True, False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        if armed and not _shields:
            rung = True
            raise _Overtime

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return call()
        finally:
            armed = False
    except (Exception, _Overtime):
        armed = False
        if rung:  # whatever the code made of it
            raise TrialTimeoutError(text) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
