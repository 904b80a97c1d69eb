"""The environment of a run: the device and its peaks, versions, and load by other programs."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import jax
import keras
from msgspec.structs import replace

from paceline.benchmark import roofline
from paceline.benchmark.records import Device
from paceline.executor.memory import device_bytes
from paceline.executor.planner import cores


def device(precision: str, *, probe: bool) -> Device:
    """Returns the default device; ``probe``: whether its peaks are measured, which takes seconds.

    ``precision`` is Keras' dtype policy, for the peak of arithmetic.
    """
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
    """The device that TensorFlow or PyTorch trains on; JAX, which probes, may see another one."""
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
    """Returns a warning if other programs keep the cores of the host busy, else None.

    Args:
        load: Returns the load averages of the host, that of the last minute first; None: those of
            the operating system.
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
    """Returns the versions that the figures depend on: package -> version."""
    names = ["paceline", "keras", "jax", "jaxlib"]
    backend = keras.backend.backend()
    found = {name: metadata.version(name) for name in names}
    if backend != "jax":
        # Not from the metadata of a package: TensorFlow is installed under several package names.
        found[backend] = str(getattr(importlib.import_module(backend), "__version__", "unknown"))
    return {**found, "python": platform.python_version()}


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or os.name
