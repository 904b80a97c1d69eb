"""``paceline devices``: what a search would run on."""

from __future__ import annotations

import os
from typing import Any

from paceline.commandline import outcome
from paceline.errors import UsageError


def show(as_json: bool) -> None:
    """Print the devices that JAX finds."""
    facts = device_facts()
    if as_json:
        outcome.print_json(facts)
        return
    memory = facts["memory_bytes"]
    each = " each" if facts["count"] > 1 and facts["platform"] != "cpu" else ""
    size = f", {memory / 2**30:.1f} GiB{each}" if memory else ""
    kind = "" if facts["kind"] == facts["platform"] else f" ({facts['kind']})"
    plural = "" if facts["count"] == 1 else "s"
    outcome.print_result(f"{facts['count']} {facts['platform']} device{plural}{kind}{size}")
    outcome.print_result(f"A search would use {', '.join(facts['would_use'])}.")


def device_facts() -> dict[str, Any]:
    """Return what ``devices --json`` prints.

    ``memory_bytes`` is one device's, or the machine's for a CPU, or None where nobody says;
    ``would_use`` are the names of the devices a search would train on.

    Raises:
        UsageError: JAX finds no device, as when ``JAX_PLATFORMS`` names one that is not there.
    """
    import jax

    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        asked = os.environ.get("JAX_PLATFORMS")
        hint = f"JAX_PLATFORMS is {asked!r}; unset it" if asked else "check the installation of jax"
        raise UsageError(f"JAX finds no device ({error}); {hint}") from error
    first = devices[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": len(devices),
        "memory_bytes": _memory(first),
        # A pack lives on one device: JAX's default one, the first.
        "would_use": [f"{first.platform}:{first.id}"],
    }


def _memory(device: Any) -> int | None:
    statistics = device.memory_stats()  # None on a CPU
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    if device.platform != "cpu":
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system can say
        return None
