"""The devices that answer: JAX's own choice or, where that fails, the next best and a line on it.

JAX settles on a platform when it is first asked for a device. Where ``JAX_PLATFORMS`` names one
that does not answer, or a plugin raises, it raises then and every time after; given other platforms
it can be asked again in the same process (docs/decisions/0010). Where nothing is named, a TPU that
does not answer is passed over without a word.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator
from importlib import import_module, util
from typing import Any

import jax

from paceline.errors import UsageError

#: "no": another device than the one meant is an error.
ALLOWED = "PACELINE_FALLBACK"
#: Seconds after which users are told what takes so long.
PATIENCE = 20.0
#: What is tried where the platform meant does not answer; without a GPU, JAX passes over ``cuda``.
_NEXT_BEST = ("cuda,cpu", "cpu")
#: A platform that is named and absent: RuntimeError, but for ``cuda`` a bare AssertionError.
_FAILURES = (RuntimeError, AssertionError)
#: JAX's own advice at the end of its message; ours says what to do here.
_ADVICE = re.compile(r" \((?:set JAX_PLATFORMS|you may need to).*\)$", re.DOTALL)
_PASSED_OVER = re.compile(r"failed to initialize: (.*)\. Available backends are", re.DOTALL)


def choose_devices(note: Callable[[str], None], patience: float = PATIENCE) -> list[Any]:
    """Has JAX settle on its devices, on others than were meant if it must.

    Args:
        note: Told, in one sentence, of another device than was meant and why; and where JAX takes
            long.
        patience: Seconds until then.

    Returns:
        The devices of this process on JAX's default platform, at least one.

    Raises:
        UsageError: No device answers at all, or ``PACELINE_FALLBACK=no`` forbids another one.
    """
    allowed = os.environ.get(ALLOWED)
    if allowed not in (None, "", "no"):
        raise UsageError(f"{ALLOWED} is {allowed!r}; give no, or unset it")
    named: str | None = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    with _told_of_waiting(note, patience):
        try:
            devices, finding = jax.local_devices(), None
        except _FAILURES as error:
            finding = _finding(named, error)
            devices = [] if allowed == "no" else _next_best(named)
        else:
            if not named and devices[0].platform == "cpu":
                finding = _passed_over()
    if finding is None:
        return devices
    if allowed == "no":
        raise UsageError(f"{finding}; {ALLOWED}=no forbids another device")
    if not devices:
        raise UsageError(f"{finding}, and no other device does; check the installation of jax")
    platform = devices[0].platform
    name = {"gpu": "cuda"}.get(platform, platform)  # as JAX_PLATFORMS has it
    note(
        f"{finding}; using the {platform.upper()}. JAX_PLATFORMS={name} says so beforehand, "
        f"{ALLOWED}=no makes this an error"
    )
    return devices


def _next_best(named: str | None) -> list[Any]:
    """Devices of the first platform that answers; none where there is no such, all as before."""
    for platforms in _NEXT_BEST:
        jax.config.update("jax_platforms", platforms)
        with contextlib.suppress(*_FAILURES):
            return jax.local_devices()
    jax.config.update("jax_platforms", named)
    return []


def _finding(named: str | None, error: BaseException) -> str:
    cause = _ADVICE.sub("", str(error)).rstrip(".") or "no such device is visible"
    if named:
        return f"JAX_PLATFORMS is {named!r}, which does not answer ({cause})"
    return f"the device that JAX finds does not answer ({cause})"


def _passed_over() -> str | None:
    """What JAX left out without a word when it took the CPU; None where there was nothing."""
    if util.find_spec("libtpu") is not None:
        try:
            jax.local_devices(backend="tpu")
        except _FAILURES as error:
            found = _PASSED_OVER.search(str(error))
            cause = found.group(1) if found else str(error)
            return f"JAX finds a TPU plugin, but no TPU answers ({cause})"
    if any("cuda" in name or "rocm" in name for name in _plugins()):
        return "JAX finds a GPU plugin, but no GPU is visible"
    return None


def _plugins() -> list[str]:
    """Names of JAX's plugins for devices."""
    if util.find_spec("jax_plugins") is None:
        return []
    return [module.name for module in pkgutil.iter_modules(import_module("jax_plugins").__path__)]


@contextlib.contextmanager
def _told_of_waiting(note: Callable[[str], None], patience: float) -> Iterator[None]:
    """Says what takes so long: a TPU that another process holds may never answer."""
    text = (
        f"JAX has been waiting for its devices for {patience:g} s; a TPU may take a minute. If it "
        "never answers, end this with Ctrl-C; JAX_PLATFORMS=cpu goes on without it"
    )
    timer = threading.Timer(patience, note, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
