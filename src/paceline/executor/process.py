"""What a search changes in its process, in one list; all of it is as before afterwards.

| what | why | module |
|---|---|---|
| random state | a search must not move the user's | ``builder`` |
| Keras' dtype policy | ``precision=`` | ``precision`` |
| settings of JAX's cache | programs are kept on disk | ``program.compilation_cache`` |
| thresholds of ``gc``, frozen objects | collections walk less | ``garbage`` |
| malloc | freed memory stays for the next step | ``executor.heap`` |
| functions of ``jax.random`` | initial weights by few programs | ``program.initial_weights`` |

Searches may run inside each other and in several threads: all but the random state and the policy
are put back when the last of them ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import keras

from paceline.executor import garbage
from paceline.executor import malloc as heap
from paceline.executor.model_builder import random_state_kept
from paceline.program.compilation_cache import persistent_cache
from paceline.program.initial_weights import shared_initializer_programs
from paceline.program.precision import policy_of


@contextmanager
def search_process(
    precision: str | None = None,
    *,
    random_state: bool = True,
    initial_weights: bool = True,
    also: Iterable[AbstractContextManager[Any]] = (),
) -> Iterator[None]:
    """The process is as a search wants it inside, and as it was after, whatever ends the search.

    Args:
        precision: "float32" or "bfloat16"; None: Keras' dtype policy as it is.
        random_state: Put the random state of Python, NumPy and Keras back. Not where whoever
            trains keeps the state of each function apart.
        initial_weights: Draw initial weights by few programs. Not where Keras' own way is measured.
        also: Changes that this caller alone makes; they are made first, and unmade last.
    """
    with ExitStack() as stack:
        for change in also:
            stack.enter_context(change)
        if random_state:
            stack.enter_context(random_state_kept())
        stack.enter_context(policy_of(precision))
        if keras.backend.backend() == "jax":  # else JAX is asked nothing
            stack.enter_context(persistent_cache())
        stack.enter_context(garbage.gc_calmed())
        stack.enter_context(heap.freed_memory_kept())
        if initial_weights:
            stack.enter_context(shared_initializer_programs())
        yield
