"""``talos.utils.gpu_utils``: functions that arranged GPUs by hand; with Paceline none is needed."""

from __future__ import annotations

from typing import Any

import jax

from paceline.compat.talos.progress import say
from paceline.errors import UsageError


def parallel_gpu_jobs(
    allow_growth: bool = True, fraction: float = 0.5, backend: str = "keras"
) -> None:
    """Notes that nothing is to be done: permutations share the GPU in one process, undivided."""
    say(
        "parallel_gpu_jobs: permutations train side by side in one process, which takes what it "
        "needs of the GPU; allow_growth and fraction have no effect. For several processes set "
        "XLA_PYTHON_CLIENT_MEM_FRACTION"
    )


def multi_gpu(
    model: Any,
    gpus: Any = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
) -> Any:
    """Returns the model as it is, because permutations are spread over the GPUs instead."""
    say("multi_gpu: a scan spreads permutations over all GPUs; the model is left as it is")
    return model


def force_cpu(backend: str = "keras") -> None:
    """Makes JAX use the CPU.

    Raises:
        UsageError: JAX has chosen another device already.
    """
    jax.config.update("jax_platforms", "cpu")
    if jax.default_backend() != "cpu":
        raise UsageError(
            f"force_cpu: JAX runs on the {jax.default_backend()} already; call it before anything "
            "else, or set JAX_PLATFORMS=cpu."
        )
