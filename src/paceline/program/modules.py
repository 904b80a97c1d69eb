"""Lowered programs on disk: the second search of a study neither compiles nor lowers.

JAX's persistent cache saves compiling, but finds a program only by its lowered text, and lowering a
stacked step costs a tenth of a second or more. ``jax.export`` writes that text; it is kept here
under a key that holds all that decides it, in the folder of the compilation cache, and deserialised
by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax import export

with contextlib.suppress(ImportError):
    import flatbuffers  # noqa: F401 - jax.export loads it at first use, in the middle of a search

from paceline.program import versions as jv
from paceline.program.group import Role

#: Files kept; the oldest go first. A file holds about 30 kB for a small model.
_KEPT = 500


def key_of(plan: str, roles: Sequence[Role], *extra: Any) -> str:
    """What decides a lowered program, as a digest.

    Args:
        plan: Name of the plan and of the function of it.
        roles: Their steps, lifted constants and the values of the others.
        *extra: Anything else that is text or a tree of shapes: slots, arguments.
    """
    digest = hashlib.sha256()
    context = (
        _source(),
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


@cache
def _source() -> str:
    """Digest of the code that makes programs: after a change of it, old ones are not used."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for folder in ("plan", "program", "rewrites"):
        for file in sorted((package / folder).glob("*.py")):
            digest.update(file.read_bytes())
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
    folder = _folder()
    if key is not None and folder is not None:
        exported = _read(folder / f"{key}.stablehlo")
        if exported is None:
            exported = _write(folder / f"{key}.stablehlo", function, shapes)
        if exported is not None:
            function = exported.call
    return jax.jit(function, donate_argnums=donate).lower(*shapes)


def cache_folder() -> str | None:
    """The folder of JAX's persistent compilation cache; None where none is set."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def cache_is_on() -> bool:
    """Whether JAX may use a compilation cache at all."""
    return jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]


def _folder() -> Path | None:
    cache = cache_folder()
    if not cache or "://" in cache or not cache_is_on():
        return None
    return Path(cache) / "modules"


def _read(path: Path) -> Any | None:
    try:
        data = path.read_bytes()
        os.utime(path)
        digest, body = data[:32], data[32:]
        return export.deserialize(bytearray(body)) if _sha(body) == digest else None
    except Exception:  # not there, damaged, or of a version that cannot be read: lower again
        return None


def _write(path: Path, function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any | None:
    """Exports and keeps; None where JAX cannot export this function."""
    try:
        exported = export.export(jax.jit(function))(*shapes)
        body = bytes(exported.serialize())
    except Exception:  # an operation without a stable form: lowered the ordinary way
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{os.getpid()}-{path.name}")
        temporary.write_bytes(_sha(body) + body)
        os.replace(temporary, path)
        files = sorted(path.parent.glob("*.stablehlo"), key=lambda file: file.stat().st_mtime)
        for old in files[:-_KEPT]:
            old.unlink(missing_ok=True)
    return exported


def _sha(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _raw(value: np.ndarray) -> bytes:
    raw = np.ascontiguousarray(value).tobytes()
    return raw if len(raw) <= 32 else hashlib.sha256(raw).digest()
