"""Compiling with XLA: counted, timed, in the background, and remembered on disk.

The persistent compilation cache is on by default, and several searches may share its folder.
``PACELINE_CACHE_DIR`` moves it; a folder the user has set in JAX stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from paceline.program import lowered_cache
from paceline.program.compilation_cache import programs_folder, tidy
from paceline.program.disk_cache import cache_folder, cache_is_on

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


def use_persistent_cache() -> None:
    """Turns JAX's persistent compilation cache on, for every program however small.

    Does nothing where the user has chosen a folder or switched the cache off.
    """
    global _listening
    with _lock:
        if not _listening:
            jax.monitoring.register_event_listener(_on_event)
            _listening = True
    if cache_folder() is not None or not cache_is_on():
        return
    path = programs_folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home: compile every time
    tidy(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides at its first compile whether there is a cache; models may have been built before.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


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
    global _pool
    start = time.perf_counter()
    lowered = lowered_cache.lowered(function, shapes, donate, key)
    lowering = time.perf_counter() - start
    options = None
    if jax.default_backend() == "cpu":
        options = _CPU | _QUICK if quick else _CPU
    with _lock:
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
