"""What stands beside every figure: the device and its peaks, versions, other programs at work."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import jax
import keras

from paceline.benchmark import roofline
from paceline.benchmark.records import Device
from paceline.executor.memory import device_bytes
from paceline.executor.planner import cores


def device(precision: str, *, probe: bool) -> Device:
    """The default device, with its peaks where there is time to probe them."""
    if keras.backend.backend() != "jax":
        return _device_of_backend()
    first = jax.local_devices()[0]
    kind = _cpu_model() if first.platform == "cpu" else first.device_kind
    found = Device(first.platform, kind, len(jax.local_devices()), cores(), device_bytes(first))
    if not probe:
        return found
    return replace(
        found, peak_flops=roofline.matmul_flops(precision), peak_bytes=roofline.copy_bytes()
    )


def _device_of_backend() -> Device:
    """What another Keras backend trains on; JAX, and so its probes, may see other devices."""
    name, gpus = keras.backend.backend(), []
    if name == "tensorflow":
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        found = tf.config.list_physical_devices("GPU")
        gpus = [tf.config.experimental.get_device_details(each) for each in found]
        gpus = [str(details.get("device_name", "GPU")) for details in gpus]
    elif name == "torch":
        import torch  # pyright: ignore[reportMissingImports]

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if gpus:
        return Device("gpu", gpus[0], len(gpus), cores())
    return Device("cpu", _cpu_model(), 1, cores())


def busy_note(load: Callable[[], tuple[float, ...]] | None = None) -> str | None:
    """What to say where other programs keep the host's cores busy; None where they do not.

    Args:
        load: Returns the host's load averages, the last minute's first; None: the system's.
    """
    load = load or getattr(os, "getloadavg", None)  # not on Windows
    if load is None:
        return None
    lately, n = load()[0], cores()
    if lately < max(1.0, 0.5 * n):
        return None
    return (
        f"other programs were at work on this machine (load {lately:.1f} on {n} cores): the times "
        "are longer, and the peak is lower, than on a quiet one"
    )


def versions() -> dict[str, str]:
    """What figures hang on beside the device."""
    names = ["paceline", "keras", "jax", "jaxlib"]
    backend = keras.backend.backend()
    found = {name: metadata.version(name) for name in names}
    if backend != "jax":
        # Not by its package: TensorFlow has several.
        found[backend] = str(getattr(importlib.import_module(backend), "__version__", "unknown"))
    return {**found, "python": platform.python_version()}


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or os.name
