"""The devices of this machine: which ones commands use, and ``paceline devices``, which shows them.

JAX chooses a platform when it is first asked for a device. If ``JAX_PLATFORMS`` names a platform
that does not answer, or a plugin raises, JAX raises an error then and at every later call. The same
process can ask JAX again with other platforms (docs/decisions/0010). If no platform is named, JAX
silently takes the CPU when a TPU does not answer.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, util
from typing import Any

from paceline.cli import output
from paceline.cli.options import Json
from paceline.errors import UsageError
from paceline.report import formats

_PACKAGES = ("jax", "jaxlib", "keras", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
#: Environment variable; "no" makes it an error if the requested device does not answer.
ALLOWED = "PACELINE_FALLBACK"
#: Seconds after which a note tells the user that JAX is waiting for its devices.
PATIENCE = 20.0
#: Values of ``jax_platforms`` to try, in this order; JAX skips ``cuda`` if there is no GPU.
_NEXT_BEST = ("cuda,cpu", "cpu")
#: What JAX raises if a platform that is named is absent: for ``cuda`` a bare AssertionError.
_FAILURES = (RuntimeError, AssertionError)
#: The advice at the end of JAX's message; it is cut off, because ours fits the command line better.
_ADVICE = re.compile(r" \((?:set JAX_PLATFORMS|you may need to).*\)$", re.DOTALL)
_PASSED_OVER = re.compile(r"failed to initialize: (.*)\. Available backends are", re.DOTALL)


def devices(as_json: Json = False) -> None:
    """Show the devices a search would use."""
    found = choose_devices(output.say)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # before the executor imports Keras
    if as_json:
        output.print_json(device_facts(found))
        return
    for line in (*_listed(found), _versions(), _use()):
        output.print_result(line)


def device_facts(devices: Sequence[Any]) -> dict[str, Any]:
    """Return what ``devices --json`` prints of the devices of JAX's default platform.

    ``memory_bytes`` is of one device, or of the machine for a CPU; None if unknown. ``would_use``
    has the names of the devices that a search would use.
    """
    from paceline.executor.training.memory import device_bytes
    from paceline.pack import mesh

    first = devices[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": len(devices),
        "memory_bytes": device_bytes(first),
        "would_use": [_name(device) for device in mesh.local_devices(None)],
    }


def _listed(devices: Sequence[Any]) -> list[str]:
    """One line for all devices; if there are several accelerators, also a line for each."""
    from paceline.executor.training.planner import cores

    first = devices[0]
    several = len(devices) > 1
    if first.platform == "cpu":
        kind, details = "", [formats.count(cores(), "core"), *_size(first)]
    else:
        kind = f" ({first.device_kind})"
        details = [f"{size}{' each' if several else ''}" for size in _size(first)]
    count = formats.count(len(devices), f"{first.platform} device")
    headline = ", ".join([f"{count}{kind}", *details])
    if not several or first.platform == "cpu":
        return [headline]
    each = ["  ".join(("", _name(d), d.device_kind, *_size(d))) for d in devices]
    return [headline, *each]


def _use() -> str:
    """How a search uses the devices if it chooses slots, plan and mesh itself."""
    from paceline.executor.training.planner import Planner

    planner = Planner()
    devices, threads, at_once = planner.devices, planner.packs_at_once, planner.max_slots([])
    slots = at_once // (threads * len(devices))
    first = devices[0]
    if first.platform == "cpu":
        return (
            f"A search would use {_name(first)} in {formats.count(threads, 'worker thread')}, with "
            f"a pack of up to {slots} slots in each: at most {at_once} trials at once. Models with "
            "more work per step train fewer trials at once. Convolutions, recurrent layers and "
            "large matrix products train one trial in each thread."
        )
    short = "fewer if memory is short"
    if len(devices) == 1:
        return f"A search would use {_name(first)}, with a pack of up to {slots} slots, {short}."
    return (
        f"A search would use all {len(devices)}, {_name(first)} to {_name(devices[-1])}, with up "
        f"to {slots} slots on each: {at_once} trials at once, {short}. If there are fewer trials "
        "than devices, their batches are split."
    )


def _versions() -> str:
    from importlib import metadata

    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:  # a plugin that is not installed
            continue
    return ", ".join(found)


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _size(device: Any) -> list[str]:
    from paceline.executor.training.memory import device_bytes

    memory = device_bytes(device)
    return [f"{memory / 2**30:.1f} GiB"] if memory else []


def choose_devices(note: Callable[[str], None], patience: float = PATIENCE) -> list[Any]:
    """Let JAX choose its devices; take others if the requested ones do not answer.

    ``note`` gets one sentence if other devices are used, and one if JAX takes longer than
    ``patience`` seconds. Return the devices of JAX's default platform, at least one. Raise
    UsageError if no device answers, or if ``PACELINE_FALLBACK=no`` forbids other devices.
    """
    import jax

    allowed = os.environ.get(ALLOWED)
    if allowed not in (None, "", "no"):
        raise UsageError(f"{ALLOWED} must be no, or unset, got {allowed!r}.")
    named: str | None = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    with _note_of_waiting(note, patience):
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
        raise UsageError(f"{finding}, and {ALLOWED}=no forbids other devices.")
    if not devices:
        raise UsageError(f"{finding}, and no other device does. Check the installation of jax.")
    platform = devices[0].platform
    name = {"gpu": "cuda"}.get(platform, platform)  # the name that JAX_PLATFORMS takes
    note(
        f"{finding}; using the {platform.upper()} instead. Set JAX_PLATFORMS={name} to choose it "
        f"explicitly, or {ALLOWED}=no to fail instead."
    )
    return devices


def _next_best(named: str | None) -> list[Any]:
    """The devices of the first platform that answers.

    If none answers, the list is empty, and ``jax_platforms`` is what it was before.
    """
    import jax

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
    """The accelerator that JAX silently left out when it chose the CPU; None without one."""
    import jax

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
    """The names of JAX's device plugins that are installed."""
    if util.find_spec("jax_plugins") is None:
        return []
    return [module.name for module in pkgutil.iter_modules(import_module("jax_plugins").__path__)]


@contextlib.contextmanager
def _note_of_waiting(note: Callable[[str], None], patience: float) -> Iterator[None]:
    """A block; if it takes longer than ``patience`` seconds, ``note`` says that JAX is waiting.

    A TPU that another process holds may never answer.
    """
    text = (
        f"JAX has been waiting for its devices for {patience:g} s; a TPU may take a minute. If it "
        "never answers, press Ctrl-C and set JAX_PLATFORMS=cpu."
    )
    timer = threading.Timer(patience, note, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
