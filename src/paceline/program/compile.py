"""Compiling with XLA: counted, timed, and in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from paceline.program import lowered_cache

#: On a CPU: vectors as wide as it has. No other option that changes the code: what XLA offers to
#: leave out copies in loops (xla_cpu_copy_insertion_use_region_analysis) gives wrong numbers
#: (JAX 0.10.2; docs/decisions/0006).
_CPU = {"xla_cpu_prefer_vector_width": "512"}
_QUICK = {"xla_backend_optimization_level": "1"}
_HIT = "/jax/compilation_cache/cache_hits"

_current = threading.local()
_pool: ThreadPoolExecutor | None = None
_under_way: set[Future[Executable]] = set()
_lock = threading.Lock()
_listening = False


@dataclass(frozen=True)
class Executable:
    """A compiled function.

    Attributes:
        call: Runs it; arguments as it was lowered with.
        seconds: Time to lower and compile, in the threads that did it.
        from_cache: It came from the persistent cache.
    """

    call: Callable[..., Any]
    seconds: float
    from_cache: bool

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
    quick: bool = False,
    key: str | None = None,
) -> Future[Executable]:
    """Lowers here (tracing hangs on the caller's context), compiles in another thread.

    Args:
        function: Pure function of arrays.
        shapes: Its arguments, as shapes and dtypes.
        donate: Positions of arguments whose memory may be reused.
        quick: Compile for a short run: on CPU half of the time goes into LLVM's higher optimisation
            levels, which make a step a little faster (docs/decisions/0003).
        key: From ``lowered_cache.key_of``, to find the lowered program on disk.
    """
    global _pool, _listening
    start = time.perf_counter()
    lowered = lowered_cache.lowered(function, shapes, donate, key)
    lowering = time.perf_counter() - start
    options = None
    if jax.default_backend() == "cpu":
        options = _CPU | _QUICK if quick else _CPU
    with _lock:
        if not _listening:
            jax.monitoring.register_event_listener(_on_event)
            _listening = True
        if _pool is None:
            _pool = ThreadPoolExecutor(2, thread_name_prefix="paceline-compile")

    def work() -> Executable:
        began = time.perf_counter()
        _current.hit = False
        try:
            compiled = lowered.compile(compiler_options=options)
        except Exception:  # an option that this version of XLA does not know
            if options is None:
                raise
            _current.hit = False
            compiled = lowered.compile()
        return Executable(compiled, lowering + time.perf_counter() - began, _current.hit)

    future = _pool.submit(work)
    _under_way.add(future)
    future.add_done_callback(_under_way.discard)
    return future


def busy() -> bool:
    """Whether XLA compiles something: nothing interrupts that, and the interpreter waits for it."""
    return bool(_under_way)


def _on_event(event: str, **_: Any) -> None:
    if event == _HIT and hasattr(_current, "hit"):
        _current.hit = True
