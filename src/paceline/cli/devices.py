"""``paceline devices``: the devices of this machine, and how a search would use them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from paceline.cli import output
from paceline.cli.options import Json
from paceline.report import formats

_PACKAGES = ("jax", "jaxlib", "keras", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")


@output.exit_codes()
def devices(as_json: Json = False) -> None:
    """Show the devices a search would use."""
    from paceline.cli import device_fallback

    found = device_fallback.choose_devices(output.say)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # before the executor imports Keras
    if as_json:
        output.print_json(device_facts(found))
        return
    for line in (*_listed(found), _versions(), _use()):
        output.print_result(line)


def device_facts(devices: Sequence[Any]) -> dict[str, Any]:
    """Return what ``devices --json`` prints of the devices of JAX's default platform.

    ``memory_bytes``: of one device (of the machine for a CPU), None if unknown. ``would_use``:
    the names of the devices that a search would train on.
    """
    from paceline.executor.memory import device_bytes
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
    from paceline.executor.planner import cores

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
    """A sentence on what a search does if it chooses slots, plan and mesh by itself."""
    from paceline.executor.planner import Planner

    planner = Planner()
    devices, lanes, at_once = planner.devices, planner.lanes, planner.max_slots([])
    slots = at_once // (lanes * len(devices))
    first = devices[0]
    if first.platform == "cpu":
        return (
            f"A search would use {_name(first)} in {formats.count(lanes, 'lane')}, a pack of up to "
            f"{slots} slots in each: at most {at_once} trials at once, fewer where a step has more "
            "work, and one a lane where packs gain nothing (convolutions, recurrent layers, large "
            "matrix products)."
        )
    short = "fewer where memory is short"
    if len(devices) == 1:
        return f"A search would use {_name(first)}: a pack of up to {slots} slots, {short}."
    return (
        f"A search would use all {len(devices)}, {_name(first)} to {_name(devices[-1])}, up to "
        f"{slots} slots on each: {at_once} trials at once, {short}. Fewer trials than devices "
        "have their batches split."
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
    from paceline.executor.memory import device_bytes

    memory = device_bytes(device)
    return [f"{memory / 2**30:.1f} GiB"] if memory else []
