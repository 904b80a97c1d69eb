"""Keras' backends: which one runs, what it is called, and how to install one that is missing."""

from __future__ import annotations

from importlib import import_module, metadata

from paceline.errors import MissingExtraError

#: Backend -> the extra that installs it. JAX is there always.
EXTRAS = {"tensorflow": "tensorflow", "torch": "torch"}


def missing(error: ImportError) -> MissingExtraError | None:
    """What to tell when Keras could not be imported because of its backend; None if it was not."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return MissingExtraError(
        f"KERAS_BACKEND: Keras is to run on {extra}, which is not installed; "
        f'pip install "paceline[{extra}]", or set KERAS_BACKEND=jax.'
    )


def versions(backend: str) -> dict[str, str]:
    """What a history hangs on beside the trial: versions of packages, and the device.

    Args:
        backend: Keras'. No other is asked anything: it would claim devices.
    """
    found = {name: metadata.version(name) for name in ("paceline", "keras")}
    if backend == "jax":
        import jax

        found |= {name: metadata.version(name) for name in ("jax", "jaxlib")}
        return {**found, "device": jax.devices()[0].device_kind}
    found[backend] = str(import_module(backend).__version__)
    return {**found, "device": _device(backend)}


def _device(backend: str) -> str:
    module = import_module(backend)
    if backend == "torch":
        return module.cuda.get_device_name() if module.cuda.is_available() else "cpu"
    kinds = {device.device_type for device in module.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "cpu").lower()
