"""How processes that trained have died, and what the next one does about it.

A trial is the reason for certain only if nothing else ran. So after a death fewer trials train at
once, and in the end one: it is built, compiled and trained with nothing else in memory. A trial
with which two processes die like this has failed. Neither JAX nor Keras is loaded here.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Signals by which a process ends that has not been asked to: by the system, or for a fault.
_FAULTS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
#: After this number of deaths, without a trial that ends well between them, the search stops. By
#: then five trials were found guilty, or the reason is not a trial.
_MOST = 12
#: The same before a search has begun to write: its file, its data or its first model kills.
_AT_FIRST = 2
#: After a death this part of the trials trains at once.
_PART = 4
#: Integers from which on a hyperparameter is named where a trial is too large for the memory.
_LARGE = 64
#: How many hyperparameters are named.
_NAMED = 3


def is_fault(code: int | None) -> bool:
    """Whether a process with this exit code of ``subprocess`` has died, and was not ended."""
    return code is not None and code < 0 and _signal_name(code) in _FAULTS


def _signal_name(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


@dataclass(frozen=True)
class Death:
    """The end of a process that trained."""

    code: int  # as of ``subprocess``: a signal is negative
    memory: bool  # whether the system has ended it for want of memory, as far as it says so
    # The trials that ran, each with its hparams.
    trials: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    alone: bool = False  # whether nothing could run but one trial
    beside: int = 0  # other trials that were in memory, and waited
    begun: bool = False  # whether the search had begun to write
    well: int = 0  # trials of the study that were complete or pruned

    @classmethod
    def of(cls, code: int, state: Mapping[str, Any], *, memory: bool) -> Death:
        """What a black box tells of a death."""
        found = {}
        for pair in [*(state.get("training") or ()), state.get("building")]:
            with suppress(TypeError, ValueError):
                number, hparams = pair
                found[int(number)] = dict(hparams)
        return cls(
            code,
            memory,
            tuple(found.items()),
            bool(state.get("alone")),
            int(state.get("beside") or 0),
            state.get("begun") is not None,
            int(state.get("well") or 0),
        )

    def to_json(self) -> dict[str, Any]:
        """For ``of_json``, in another process."""
        return {**vars(self), "trials": [list(pair) for pair in self.trials]}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Death:
        """A death as ``to_json`` wrote it."""
        return cls(**{**value, "trials": tuple((n, dict(h)) for n, h in value["trials"])})

    @property
    def may_be_memory(self) -> bool:
        """Whether want of memory may be why: XLA, for one, aborts then."""
        return self.memory or _signal_name(self.code) in ("SIGKILL", "SIGABRT", "SIGBUS")

    @property
    def by_chance(self) -> bool:
        """Whether somebody may have killed the process, for reasons that are not its own."""
        return not self.memory and _signal_name(self.code) == "SIGKILL"

    @property
    def how(self) -> str:
        """What has happened, for the user."""
        if self.memory:
            return "the system killed the training process because memory ran out"
        if self.code >= 0:
            return f"the training process exited with status {self.code}"
        name = _signal_name(self.code)
        if name == "SIGKILL":
            return "the training process was killed (SIGKILL), possibly because memory ran out"
        return f"the training process crashed ({name})"


def largest(hparams: Mapping[str, Any], sizes: Sequence[int] = ()) -> str:
    """The hyperparameters that make a model large, as text; empty where none is large.

    ``sizes`` are those of an array that is too large. If one of them follows from a
    hyperparameter, no other is named.
    """
    ints = {n: v for n, v in hparams.items() if type(v) is int and abs(v) >= _LARGE}
    of_array = {n: v for n, v in ints.items() if any(size and size % v == 0 for size in sizes)}
    ints = of_array or ints
    names = sorted(ints, key=lambda name: -abs(ints[name]))[:_NAMED]
    return ", ".join(f"{name}={ints[name]:,}" for name in names)


@dataclass(frozen=True)
class Precautions:
    """What a process does after the deaths before it."""

    at_once: int | None = None  # trials that train at once, at most; None: as many as without
    # Whether one trial at a time is built, compiled and trained, and nothing else.
    alone: bool = False
    # Whether trials that ran start over, one after another: together, as in a checkpoint, they may
    # be too large.
    afresh: bool = False
    # Trials that have failed: their hparams, as far as they were known, and why.
    killers: tuple[tuple[Mapping[str, Any], str], ...] = ()

    @property
    def text(self) -> str:
        """What is done, for the user."""
        if self.alone:
            return "with one trial at a time"
        if self.at_once is not None:
            return f"with at most {self.at_once} trials at once"
        return ""


@dataclass
class DeathRecord:
    """The deaths of the processes of one search."""

    deaths: list[Death] = field(default_factory=list)

    @classmethod
    def of_json(cls, value: Sequence[Mapping[str, Any]]) -> DeathRecord:
        """A record as ``to_json`` wrote it."""
        return cls([Death.of_json(death) for death in value])

    def to_json(self) -> list[dict[str, Any]]:
        """For ``of_json``, in another process."""
        return [death.to_json() for death in self.deaths]

    def add(self, code: int | None, state: Mapping[str, Any], *, memory: bool) -> None:
        """Adds a death; arguments as of ``Death.of``. ``code`` is None where nothing says it."""
        self.deaths.append(Death.of(1 if code is None else code, state, memory=memory))

    @property
    def hopeless(self) -> bool:
        """Whether another process would die as well, as far as one can tell."""
        if not self.deaths:
            return False
        if not self.deaths[-1].begun:
            return sum(not death.begun for death in self.deaths) >= _AT_FIRST
        best, since = -1, 0
        for death in self.deaths:
            best, since = (death.well, 1) if death.well > best else (best, since + 1)
        return since >= _MOST

    @property
    def precautions(self) -> Precautions:
        """What the next process does."""
        at_once: int | None = None
        alone = afresh = False
        killers: list[tuple[Mapping[str, Any], str]] = []
        since: list[Death] = []  # the deaths since the last trial that has failed for them
        for death in self.deaths:
            since.append(death)
            if len(since) == 1 and death.by_chance and not killers:
                continue  # the same again, bit for bit
            if len(death.trials) == 1:
                ((_, hparams),) = death.trials
                like = [d for d in since if len(d.trials) == 1 and d.trials[0][1] == hparams]
                if death.alone and not death.beside and len(like) > 1:
                    killers.append((hparams, _why_failed(hparams, like)))
                    since = []
                    # It may have been the only one. Of several, there may be many.
                    at_once, alone = (None, False) if len(killers) == 1 else (1, True)
                    afresh = False
                    continue
                at_once, alone = 1, True
                afresh |= death.alone and death.beside > 0
            else:
                n_trials = min(len(death.trials), at_once or len(death.trials))
                at_once = 1 << max(0, (n_trials // _PART).bit_length() - 1)
                alone = at_once == 1
        return Precautions(at_once, alone, afresh, tuple(killers))

    def note(self) -> str:
        """The last death, and what happens now, as a sentence for the user."""
        how = self.deaths[-1].how
        if self.hopeless:
            return f"{how}. It died {len(self.deaths)} times in this search, which stops now"
        now, before = self.precautions, DeathRecord(self.deaths[:-1]).precautions
        text = f"{how}. A new process continues from the last checkpoint"
        if len(now.killers) > len(before.killers):
            return f"{text}. The trial that was alone in the process fails"
        return f"{text} {now.text}".rstrip()

    @property
    def what_to_do(self) -> str:
        """What the user may do after the search has stopped."""
        last = self.deaths[-1]
        if last.begun:
            return (
                "Finished trials are kept. Use smaller models, batches or data, or pass "
                "parallel_trials=1 (--parallel-trials 1)."
            )
        return (
            "No trial had started: the process died while it loaded your code and data, or built "
            "the first model. Use smaller data, or run these steps in Python alone to find the "
            "cause."
        )


def _why_failed(hparams: Mapping[str, Any], deaths: Sequence[Death]) -> str:
    text = (
        f"{deaths[-1].how}. This happened {len(deaths)} times with only this trial in the process"
    )
    named = largest(hparams)
    if named and any(death.may_be_memory for death in deaths):
        return f"{text}. Its largest hyperparameters: {named}. Limit them in build(hp)"
    values = ", ".join(f"{name}={value}" for name, value in hparams.items())
    return f"{text}. Its hyperparameters: {values or 'none yet'}"


class OutOfMemoryKills:
    """How often the system has ended a process of ours for want of memory, where it says so.

    ``root`` is the folder of the system's files.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = self._count()

    def happened(self) -> bool:
        """Whether there was one since this was last asked."""
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        # Of the machine, and of this process' control group. Both count a process that the system
        # has ended; other processes of the machine are a chance that is taken.
        found = [_counted(self._root / "proc/vmstat")]
        with suppress(OSError):
            for line in (self._root / "proc/self/cgroup").read_text().splitlines():
                _, kinds, path = [*line.split(":", 2), "", ""][:3]
                top = self._root / "sys/fs/cgroup"
                if "memory" in kinds.split(","):
                    found.append(_counted(top / "memory" / path.lstrip("/") / "memory.oom_control"))
                    found.append(_counted(top / "memory" / "memory.oom_control"))
                elif not kinds:
                    found.append(_counted(top / path.lstrip("/") / "memory.events"))
                    found.append(_counted(top / "memory.events"))  # as a container shows it
        return sum(found)


def _counted(path: Path) -> int:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
    except (OSError, UnicodeError):
        return 0
    return int(found[1]) if found else 0


def may_watch() -> bool:
    """Whether this system has what a wall needs."""
    return os.name == "posix" and hasattr(os, "fork") and hasattr(os, "pread")
