"""Lowering and compiling with XLA: counted, timed, in the background; lowered programs on disk.

The second search on a study neither compiles nor lowers. JAX's persistent cache saves compiling,
but finds a program only by its lowered text. Lowering a vectorized step costs a tenth of a second
or more. ``jax.export`` writes that text. It is stored under a key that holds all that decides it,
in the folder of the compilation cache, and deserialised by the next process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax import export

from paceline.program import jax_compat as jv
from paceline.program.compilation_cache import DiskCache, source_digest
from paceline.program.step_template import StepTemplate

with contextlib.suppress(ImportError):
    import flatbuffers  # noqa: F401 - jax.export loads it at first use, in the middle of a search

#: On a CPU: vectors as wide as it has. No other option that changes the code: what XLA offers to
#: leave out copies in loops (xla_cpu_copy_insertion_use_region_analysis) gives wrong numbers
#: (JAX 0.10.2; docs/decisions/0006).
_CPU: dict[str, Any] = {"xla_cpu_prefer_vector_width": "512"}
#: For a short run: LLVM's lower level, and vectors as wide as XLA has them by default. Both take
#: less time to compile (docs/decisions/0032).
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": "1"}
#: The older of XLA's two ways to write fused loops. It takes half as long to compile a step, but
#: what it makes of updates in place is slower (docs/decisions/0035, 0045).
_OLDER_LOOPS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
_HIT = "/jax/compilation_cache/cache_hits"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"

_current = threading.local()
_pool: ThreadPoolExecutor | None = None
_under_way: set[Future[Executable]] = set()
_lock = threading.Lock()
_listening = False


class CompileEffort(IntEnum):
    """How well a program is compiled; what is faster to run takes longer to compile."""

    WELL = 0  # for a long run
    QUICKLY = 1  # for a short run
    MOST_QUICKLY = 2  # for a short run that updates few variables in place


@dataclass(frozen=True)
class Executable:
    """A compiled function."""

    call: Callable[..., Any]  # takes arguments as it was lowered with
    seconds: float  # to lower and compile, in the threads that did it
    from_cache: bool  # it came from the persistent cache
    ended: float = 0.0  # when it was ready, by ``time.perf_counter``; 0.0 where nobody looked
    saved: float = 0.0  # seconds that the cache saved: another program like it may not be there

    @functools.cached_property
    def memory(self) -> int | None:
        """Bytes on the device while it runs: arguments, results, temporaries; None if unknown."""
        try:
            found = self.call.memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
            return (
                found.argument_size_in_bytes
                + found.output_size_in_bytes
                + found.temp_size_in_bytes
                - found.alias_size_in_bytes
            )
        except Exception:  # not every backend and version tells
            return None

    def flops(self) -> float | None:
        """Floating-point operations of a call as XLA counts them, loops once; None if unknown."""
        try:
            found = self.call.cost_analysis()  # pyright: ignore[reportFunctionMemberAccess]
            found = found[0] if isinstance(found, (list, tuple)) else found  # of older JAX
            flops = float(found["flops"])
        except Exception:  # not every backend and version tells
            return None
        return flops if flops > 0 else None


def compile_in_background(
    function: Callable[..., Any],
    shapes: tuple[Any, ...],
    donate: tuple[int, ...] = (),
    *,
    effort: CompileEffort = CompileEffort.WELL,
    key: str | None = None,
) -> Future[Executable]:
    """Lowers here (tracing depends on the caller's context), compiles in another thread.

    ``shapes`` are those of the arguments, with dtypes; ``donate`` are positions of arguments whose
    memory may be reused. ``effort`` is how well to compile. On a CPU LLVM's higher optimisation
    levels take half of the time, and make a step a little faster (docs/decisions/0003). A function
    that donates nothing updates nothing in place. ``key`` is from ``program_key``, to find the
    lowered program on disk; None: never on disk.
    """
    global _pool, _listening
    start = time.perf_counter()
    lowered = lower(function, shapes, donate, key)
    lowering = time.perf_counter() - start
    # The options to try, in turn: a version of XLA refuses one that it does not know.
    tries: list[dict[str, Any] | None] = [None]
    if jax.default_backend() == "cpu":
        tries = [_CPU, None]
        if effort is not CompileEffort.WELL:
            tries = [_QUICK, None]
            if effort is CompileEffort.MOST_QUICKLY or not donate:
                tries.insert(0, _QUICK | _OLDER_LOOPS)
    with _lock:
        if not _listening:
            jax.monitoring.register_event_listener(_on_event)
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            _listening = True
        if _pool is None:
            _pool = ThreadPoolExecutor(2, thread_name_prefix="paceline-compile")

    def work() -> Executable:
        began = time.perf_counter()
        for options in tries:
            _current.hit, _current.saved = False, 0.0
            try:
                compiled = lowered.compile(compiler_options=options)
                break
            except Exception as error:
                # Other options make other last digits: taken where XLA refuses these, and not where
                # something fails that would not fail again.
                passing = isinstance(error, OSError | MemoryError | Warning)
                if options is None or passing or "RESOURCE_EXHAUSTED" in str(error):
                    raise
        ended = time.perf_counter()
        seconds = lowering + ended - began
        return Executable(compiled, seconds, _current.hit, ended, max(0.0, _current.saved))

    future = _pool.submit(work)
    _under_way.add(future)
    future.add_done_callback(_under_way.discard)
    return future


def drop_waiting() -> None:
    """Forgets what waits for a compiler: the search that asked for it has ended."""
    for future in list(_under_way):
        future.cancel()


def busy() -> bool:
    """Whether XLA compiles something: nothing interrupts that, and the interpreter waits for it."""
    return bool(_under_way)


def _on_event(event: str, **_: Any) -> None:
    if event == _HIT and hasattr(_current, "hit"):
        _current.hit = True


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event == _SAVED and hasattr(_current, "saved"):
        _current.saved = duration_secs + 0.5  # JAX keeps whole seconds, without what is beyond


#: A file holds about 30 kB for a small model.
_LOWERED = DiskCache("modules", kept=500)


def program_key(plan: str, roles: Sequence[StepTemplate], *extra: Any) -> str:
    """What decides a lowered program, as a digest.

    ``plan`` names the plan and its function. ``roles`` give their steps, lifted constants and other
    constants' values. ``extra`` is anything else that is text or a tree of shapes: slots,
    arguments.
    """
    digest = hashlib.sha256()
    context = (
        source_digest(),
        jax.__version__,
        jaxlib.version.__version__,
        jax.default_backend(),
        jv.settings(),
    )
    for part in (plan, *context, *(str(part) for part in extra)):
        digest.update(f"{part}\0".encode())
    for role in roles:
        for step, inputs in ((role.full, role.lifted), (role.tail, role.tail_lifted)):
            if step is None:
                digest.update(b"none\0")
                continue
            digest.update(step.canonical.fingerprint.encode())
            for index, constant in enumerate(step.canonical.constants):
                value = b"lifted" if index in inputs else _raw(constant.value)
                digest.update(f"{index}:".encode() + value + b"\0")
    return digest.hexdigest()


def lower(
    function: Callable[..., Any], shapes: tuple[Any, ...], donate: tuple[int, ...], key: str | None
) -> Any:
    """What ``jax.jit(function).lower(*shapes)`` returns, from disk where it is there.

    ``donate``: positions of arguments whose memory may be reused. ``key``: from ``program_key``;
    None: never on disk.
    """
    if key is not None and _LOWERED.usable:
        exported = _read_lowered(key)
        if exported is None:
            exported = _write_lowered(key, function, shapes)
        if exported is not None:
            function = exported.call
    return jax.jit(function, donate_argnums=donate).lower(*shapes)


def _read_lowered(key: str) -> Any | None:
    body = _LOWERED.read(f"{key}.stablehlo")
    try:
        return None if body is None else export.deserialize(bytearray(body))
    except Exception:  # of a version that cannot be read: lower again
        return None


def _write_lowered(key: str, function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any | None:
    """Exports and keeps; None if JAX cannot export this function."""
    try:
        exported = export.export(jax.jit(function))(*shapes)
        body = bytes(exported.serialize())
    except Exception:  # an operation without a stable form: lowered the ordinary way
        return None
    _LOWERED.write(f"{key}.stablehlo", body)
    return exported


def _raw(value: np.ndarray) -> bytes:
    raw = np.ascontiguousarray(value).tobytes()
    return raw if len(raw) <= 32 else hashlib.sha256(raw).digest()
