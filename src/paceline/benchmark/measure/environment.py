"""The environment of a run: the device and its peaks, versions, and load by other programs.

The peaks of a device are measured with one large matrix product and one large copy.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from msgspec.structs import replace

from paceline.benchmark.records import Device
from paceline.executor.training.memory import device_bytes
from paceline.executor.training.planner import cores

#: Side of the matrices, and bytes of the copied array: large enough to fill the device.
_SIDE = {"cpu": 2048}
_BYTES = {"cpu": 2**27}
#: Timed repetitions. The fastest one counts, because a peak is the best that can be reached.
_REPEATS = 5


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
    return replace(found, peak_flops=matmul_flops(precision), peak_bytes=copy_bytes())


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


def matmul_flops(precision: str) -> float:
    """Measures floating-point operations per second of a matrix product on the default device."""
    side = _SIDE.get(jax.default_backend(), 8192)
    dtype = jnp.bfloat16 if "bfloat16" in precision else _float(precision)
    a = jnp.asarray(np.random.default_rng(0).normal(size=(side, side)), dtype)
    return 2.0 * side**3 / _fastest(jax.jit(lambda a: a @ a), a)


def copy_bytes() -> float:
    """Measures bytes per second, read and written, of a copy on the default device."""
    n = _BYTES.get(jax.default_backend(), 2**30) // 4
    a = jnp.zeros(n, jnp.float32)
    return 8.0 * n / _fastest(jax.jit(lambda a: a + 1), a)


def _float(precision: str) -> Any:
    return {"float64": jnp.float64, "float16": jnp.float16, "mixed_float16": jnp.float16}.get(
        precision, jnp.float32
    )


def _fastest(function: Any, argument: Any) -> float:
    jax.block_until_ready(function(argument))
    each = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(function(argument))
        each.append(time.perf_counter() - began)
    return min(each)


def busy_note(load: Callable[[], tuple[float, ...]] | None = None) -> str | None:
    """Returns a warning if other programs keep the cores of the host busy, else None.

    ``load`` returns the load averages of the host, that of the last minute first; None: those of
    the operating system.
    """
    load = load or getattr(os, "getloadavg", None)  # not on Windows
    if load is None:
        return None
    lately, n = load()[0], cores()
    if lately < max(1.0, 0.5 * n):
        return None
    return (
        f"other programs were running on this machine (load {lately:.1f} on {n} cores). Times are "
        "longer, and the peak is lower, than on an idle machine"
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
