"""Lowered programs on disk: the second search of a study neither compiles nor lowers.

JAX's persistent cache saves compiling, but finds a program only by its lowered text, and lowering a
stacked step costs a tenth of a second or more. ``jax.export`` writes that text; it is kept here
under a key that holds all that decides it, in the folder of the compilation cache, and deserialised
by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax import export

with contextlib.suppress(ImportError):
    import flatbuffers  # noqa: F401 - jax.export loads it at first use, in the middle of a search

from paceline.program import jax_compat as jv
from paceline.program.disk_cache import DiskCache, source_digest
from paceline.program.step_template import StepTemplate

#: A file holds about 30 kB for a small model.
_DRAWER = DiskCache("modules", kept=500)


def key_of(plan: str, roles: Sequence[StepTemplate], *extra: Any) -> str:
    """What decides a lowered program, as a digest.

    Args:
        plan: Name of the plan and of the function of it.
        roles: Their steps, lifted constants and the values of the others.
        *extra: Anything else that is text or a tree of shapes: slots, arguments.
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


def lowered(
    function: Callable[..., Any], shapes: tuple[Any, ...], donate: tuple[int, ...], key: str | None
) -> Any:
    """The function lowered for these shapes, from disk where it is there.

    Args:
        function: Pure function of arrays.
        shapes: Its arguments.
        donate: Positions of arguments whose memory may be reused.
        key: From ``key_of``; None: never on disk.

    Returns:
        What ``jax.jit(function).lower(*shapes)`` returns.
    """
    if key is not None and _DRAWER.usable:
        exported = _read(key)
        if exported is None:
            exported = _write(key, function, shapes)
        if exported is not None:
            function = exported.call
    return jax.jit(function, donate_argnums=donate).lower(*shapes)


def _read(key: str) -> Any | None:
    body = _DRAWER.read(f"{key}.stablehlo")
    try:
        return None if body is None else export.deserialize(bytearray(body))
    except Exception:  # of a version that cannot be read: lower again
        return None


def _write(key: str, function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any | None:
    """Exports and keeps; None where JAX cannot export this function."""
    try:
        exported = export.export(jax.jit(function))(*shapes)
        body = bytes(exported.serialize())
    except Exception:  # an operation without a stable form: lowered the ordinary way
        return None
    _DRAWER.write(f"{key}.stablehlo", body)
    return exported


def _raw(value: np.ndarray) -> bytes:
    raw = np.ascontiguousarray(value).tobytes()
    return raw if len(raw) <= 32 else hashlib.sha256(raw).digest()
