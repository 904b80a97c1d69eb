"""What a search changes in its process, in one list; all of it is as before afterwards.

| what | why | code |
|---|---|---|
| random state | a search must not move the user's | ``random_state_kept``, below |
| Keras' dtype policy | ``precision=``, and what builds set | ``program.trace`` |
| settings of JAX's cache | programs are kept on disk | ``program.compilation_cache`` |
| thresholds of ``gc``, frozen objects | collections walk fewer objects | ``gc_calmed``, below |
| the C allocator | freed memory stays for the next step | ``freed_memory_kept``, below |
| names in ``jax.random``, ``jax.numpy`` | cheap initial weights | ``program.initial_weights`` |
| handlers of signals | a search saves itself before it stops | ``StopSignal``, below |
| ``keras.Variable`` | which variables models share | ``program.initial_weights`` |
| ``warnings.showwarning`` | a warning is shown once | ``repeated_warnings_hidden``, below |

Searches may run inside each other and in several threads. All but the random state and the policy
are restored when the last search ends.

Tracing creates objects by the hundred thousand. Every full garbage collection walks all of JAX and
Keras, which takes a tenth of a second. So older objects are set aside during a search.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import os
import random
import signal
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.program.keras_private import SharedChange, seed_state_kept


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the user's random states afterwards: Python's, NumPy's and Keras' own."""
    import numpy as np  # late: the command imports this module at its very start

    python, numpy_state = random.getstate(), np.random.get_state()
    with seed_state_kept():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)


@contextmanager
def search_process(
    precision: str | None = None,
    *,
    random_state: bool = True,
    initial_weights: bool = True,
    memory: bool = True,
    also: Iterable[AbstractContextManager[Any]] = (),
) -> Iterator[None]:
    """The process is as a search wants it inside, and as it was after, whatever ends the search.

    Args:
        precision: "float32" or "bfloat16"; None: Keras' dtype policy as it is.
        random_state: Put the random state of Python, NumPy and Keras back. Not where whoever
            trains keeps the state of each function apart.
        initial_weights: Draw initial weights by few programs. Not where Keras' own way is measured.
        memory: Change the garbage collector and the C allocator. Not where a model is only built.
        also: Changes that this caller alone makes; they are made first, and unmade last.
    """
    from paceline.program.compilation_cache import persistent_cache
    from paceline.program.initial_weights import shared_initializer_programs, variables_noted
    from paceline.program.trace import policy_of

    with ExitStack() as stack:
        for change in also:
            stack.enter_context(change)
        if random_state:
            stack.enter_context(random_state_kept())
        stack.enter_context(policy_of(precision))
        stack.enter_context(persistent_cache())
        stack.enter_context(repeated_warnings_hidden())
        if memory:
            stack.enter_context(gc_calmed())
            stack.enter_context(freed_memory_kept())
        stack.enter_context(variables_noted())
        if initial_weights:
            stack.enter_context(shared_initializer_programs())
        yield


#: The warnings that were shown since the first of several searches began: kind, text and place.
_shown: set[Any] = set()


@contextmanager
def repeated_warnings_hidden(shown: set[Any] | None = None) -> Iterator[None]:
    """Shows a warning once, also if every trial's ``build`` causes it again.

    Python does this itself, but forgets it when code changes the filters of warnings, as JAX does
    when it compiles. Warnings in ``shown`` are not shown again. Those shown in the block are added.
    """
    with _each_warning_once.applied():
        _shown.update(shown or ())
        try:
            yield
        finally:
            if shown is not None:
                shown.update(_shown)


@SharedChange
def _each_warning_once() -> Iterator[None]:
    show: Callable[..., Any] = warnings.showwarning

    def show_new(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        warning = (category, str(message), filename, lineno)
        if warning not in _shown:
            _shown.add(warning)
            show(message, category, filename, lineno, file, line)

    _shown.clear()
    warnings.showwarning = show_new
    yield
    if warnings.showwarning is show_new:  # else somebody else has replaced it meanwhile
        warnings.showwarning = show


#: Objects made between two collections of the youngest, and how many collections of one generation
#: there are between two of the next.
_GC_THRESHOLDS = (50_000, 10, 5)
#: Share of the time between two collections before a search that the later one may take.
_GC_SHARE = 0.05


@contextmanager
def gc_calmed() -> Iterator[None]:
    """Sets the objects that are there aside until the last of several searches has ended.

    Objects of earlier searches are collected first. Their last models are in cycles, and set aside
    they would never be collected. Collections take at most a twentieth of the time between them, so
    short searches in a large process skip some.
    """
    if _collector_is_free():
        # Before the lock of the patch is taken: collecting may end an older search.
        _leftovers.collect()
    with _calm_collector.applied():
        yield


def _collector_is_free() -> bool:
    """Whether neither the user nor another search has changed the collector."""
    return gc.get_freeze_count() == 0 and gc.get_threshold()[0] > 0


@SharedChange
def _calm_collector() -> Iterator[None]:
    if not _collector_is_free():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class _LeftoverCollector:
    """Collects what searches left, unless the last collection was too short a while ago."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._again: float | None = None  # when a collection has earned its time; None: no search

    def collect(self) -> None:
        """Before a search; before the first there is nothing to collect."""
        began = self._clock()
        if self._again is None:
            self._again = began
        elif began >= self._again:
            gc.collect()
            ended = self._clock()
            self._again = ended + (ended - began) / _GC_SHARE


_leftovers = _LeftoverCollector()


class DroppedModels:
    """Counts bytes of models that are no longer needed, whose cycles keep their weights alive."""

    def __init__(self, limit: int = 2**28) -> None:
        self._limit, self._bytes = limit, 0

    def add(self, nbytes: int) -> None:
        """Notes a dropped model, and its variables' bytes; collects once enough has gathered."""
        self._bytes += nbytes
        if self._bytes >= self._limit:
            self._bytes = 0
            gc.collect()


#: Parameters of glibc's mallopt, and what it is told: during a search, and afterwards. The latter
#: is what glibc itself would come to in a process that frees arrays of 32 MiB.
_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1
_DURING = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1))
_AFTERWARDS = ((_MMAP_MAX, 2**16), (_TRIM_THRESHOLD, 2**26), (_MMAP_THRESHOLD, 2**25))


def freed_memory_kept() -> AbstractContextManager[None]:
    """Makes the allocator keep freed memory for the next allocation, however large.

    A compiled step allocates its temporaries when it begins and frees them when it ends. Above 32
    MiB glibc asks the system each time, which clears every page: a quarter of the time of a step
    with large convolutions (docs/decisions/0028). More than 64 MiB in a thread it still asks for.
    Afterwards what is free goes back to the system, but for so much per thread. Does nothing where
    the user has set glibc's allocator, and with other C libraries.
    """
    return _greedy_allocator.applied()


@SharedChange
def _greedy_allocator() -> Iterator[None]:
    mallopt = None if _is_set_by_the_user() else _mallopt()
    if mallopt is None:
        yield
        return
    for setting in _DURING:
        mallopt(*setting)
    yield
    for setting in _AFTERWARDS:
        mallopt(*setting)
    _return_what_is_free()


def _is_set_by_the_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)


def give_back() -> None:
    """Collects what nobody refers to, and returns what the allocator keeps of it to the system.

    glibc keeps freed memory that lies below memory in use. With TensorFlow, whose threads free what
    others took, a process of many trials grows by it.
    """
    gc.collect()
    _return_what_is_free()


def _return_what_is_free() -> None:
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return _of_the_c_library("malloc_trim")


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    return _of_the_c_library("mallopt")


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)  # not in every C library


_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: Seconds after which a signal that came while a module was loaded is sent again.
_LOADING = 0.1
#: Folders of installed modules, Python's own among them.
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class StopSignal:
    """Hears Ctrl-C, SIGTERM and SIGHUP while it is entered; blocks of one object may be nested.

    A signal raises KeyboardInterrupt. In a ``deferred`` block the first signal is only noted, so
    that the search can save itself, and the second one raises. Not every interrupt arrives: what is
    raised in a callback of the garbage collector (JAX has one) or in ``__del__``, Python prints and
    drops. So each signal is noted too, and whoever does long work asks ``check`` between two steps.
    While an installed module loads, the interrupt waits: some extensions crash the process when one
    is raised in the middle of it.

    Only a process' main thread handles signals. In other threads, where the program has handlers of
    its own, and for signals that are ignored (``nohup``), nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False  # whether a signal has asked the search to stop
        self._before: dict[int, Any] = {}
        self._n_entered = self._n_deferred = 0
        self._tell: Callable[[str], None] = _say
        self._again_heard: Callable[[], None] = _interrupted
        self._hook: Callable[[Any], object] | None = None
        self._again: threading.Timer | None = None  # sends a signal that waits once more

    @classmethod
    def of_process(cls) -> StopSignal:
        """The object that hears the signals of this process already, or a new one."""
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                owner = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(owner, cls):
                    return owner
        return cls()

    def __enter__(self) -> StopSignal:
        self._n_entered += 1
        if self._n_entered > 1 or threading.current_thread() is not threading.main_thread():
            return self
        self._hook, sys.unraisablehook = sys.unraisablehook, self._dropped
        usual = (signal.default_int_handler, signal.SIG_DFL)
        for number in stop_signals():
            if signal.getsignal(number) in usual:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._n_entered -= 1
        if self._n_entered == 0 and self._again is not None:
            self._again.cancel()
        if self._n_entered == 0 and self._hook is not None:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            if sys.unraisablehook == self._dropped:
                sys.unraisablehook = self._hook
            self._hook = None

    @contextmanager
    def deferred(
        self,
        tell: Callable[[str], None] | None = None,
        again: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """A block in which the first signal does not interrupt, but is noted and told only.

        Further signals call ``again``, which raises KeyboardInterrupt unless it is given.
        """
        before = self._tell, self._again_heard
        self._tell, self._again_heard = tell or _say, again or _interrupted
        self._n_deferred += 1
        try:
            yield
        finally:
            self._n_deferred -= 1
            self._tell, self._again_heard = before

    def check(self) -> None:
        """Raises the KeyboardInterrupt of a signal that asked the search to stop and was lost."""
        if self.asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        if not self._n_deferred and _loads_a_module(frame):
            self._again = threading.Timer(_LOADING, self._send_again, [number])
            self._again.daemon = True
            self._again.start()
            return
        if not self._n_deferred:
            raise KeyboardInterrupt
        if not first:
            self._again_heard()
            return
        text = "stopping after this epoch; press Ctrl-C again to stop now"
        try:
            self._tell(text)
        except Exception:  # the stream that it writes to is in use at this moment
            _say(text)

    def _send_again(self, number: int) -> None:
        if self._n_entered and not self._n_deferred:  # else the search finds ``asked``
            os.kill(os.getpid(), number)

    def _dropped(self, unraisable: Any) -> None:
        """Takes the place of the traceback of an interrupt that Python drops."""
        if self.asked and issubclass(unraisable.exc_type, KeyboardInterrupt):
            _say("stopping after this step")
        elif self._hook is not None:
            self._hook(unraisable)


def _interrupted() -> None:
    raise KeyboardInterrupt


def _loads_a_module(frame: FrameType | None) -> bool:
    """Whether a frame belongs to the import of an installed module, rather than of a user's."""
    inner: FrameType | None = None
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # The frame inside of it runs the module's body; none: an extension is loaded.
            return inner is None or inner.f_code.co_filename.startswith(_INSTALLED)
        inner, frame = frame, frame.f_back
    return False


def stop_signals() -> list[int]:
    """Ctrl-C, the end that a system asks for, and a terminal that has gone, which Windows lacks."""
    return [getattr(signal, s) for s in _SIGNALS if hasattr(signal, s)]


def _say(text: str) -> None:
    with suppress(OSError):  # sys.stderr may be in use at this moment, or its terminal gone
        os.write(2, f"\n{text}\n".encode())


def host_bytes(root: Path = Path("/")) -> float:
    """Bytes of the host's memory that this process may still take; infinity where nothing says.

    The system, whose files are in ``root``, ends a process that takes more than its container's
    limit.
    """
    found = [_container_bytes(root)]
    with suppress(OSError):  # not Linux
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        if available := sizes.get("MemAvailable"):
            found.append(1024.0 * int(available[0]))
    return min(found)


#: The folder, and the files of a limit and of what is used, of control groups of both versions.
_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def _container_bytes(root: Path) -> float:
    """What the limits of this process' control groups leave."""
    left = math.inf
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = [*line.split(":", 2), "", ""][:3]
            for kind in set(kinds.split(",")) & set(_GROUPS):
                top, limit, used = _GROUPS[kind]
                inner = root / top / path.lstrip("/")
                # Every group around it limits it too. In a container the path may not be there.
                for group in (inner, *inner.parents):
                    left = min(left, _group_bytes(group, limit, used))
    return max(0.0, left)


def _group_bytes(group: Path, limit: str, used: str) -> float:
    try:
        most, taken = int((group / limit).read_text()), int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        stat = dict(line.split(" ", 1) for line in lines)
        # Pages of files that nobody uses now are given up before memory runs out.
        return most - taken + int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # no file, or no limit: "max"
        return math.inf
