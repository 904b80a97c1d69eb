"""Where a training step of the MNIST work goes: its parts alone, on one core.

Milliseconds a step (minimum over runs) of the forward product, the kernel gradient, Adam and the
dropout mask of 784-128-10 at batch 128, each in a loop of its own as in a pack. Quoted in
docs/decisions/0005.

    taskset -c 0 python benchmarks/gemm_bound.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
from jax import lax

B, N_IN, N_OUT, STEPS, RUNS = 128, 784, 128, 50, 12
RNG = np.random.default_rng(0)


def looped(step: Callable[[Any], Any], start: Any) -> float:
    """Return the milliseconds of one step inside a loop that carries its result."""
    run = jax.jit(lambda carry: lax.fori_loop(0, STEPS, lambda _, c: step(c), carry))
    jax.block_until_ready(run(start))
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        jax.block_until_ready(run(start))
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds) / STEPS


def array(*shape: int) -> jax.Array:
    """Return an array of uniform random numbers."""
    return jnp.asarray(RNG.random(shape, np.float32))


def adam(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Update the kernel with Adam, with the kernel itself in place of the gradient."""
    value, m, v = carry
    grad = value * 0.1
    m, v = m + (grad - m) * 0.1, v + (grad * grad - v) * 0.001
    return value - 1e-3 * m / (jnp.sqrt(v) + 1e-7), m, v


def main() -> None:
    """Print and write the times of the parts."""
    x, kernel, grad = array(B, N_IN), array(N_IN, N_OUT), array(B, N_OUT)
    key = jnp.asarray([1, 2], jnp.uint32)
    parts = {
        "forward product": looped(
            lambda c: (c[0] + 1e-9, c[1] + (x + c[0]) @ kernel), (0.0, jnp.zeros((B, N_OUT)))
        ),
        "kernel gradient": looped(
            lambda c: (c[0] + 1e-9, c[1] + x.T @ (grad + c[0])), (0.0, jnp.zeros((N_IN, N_OUT)))
        ),
        "adam": looped(adam, (kernel, kernel * 0, kernel * 0)),
        "dropout mask": looped(
            lambda c: (c[0] + 1, c[1] + jax.random.uniform(c[0], (B, N_OUT))),
            (key, jnp.zeros((B, N_OUT))),
        ),
    }
    for name, milliseconds in parts.items():
        print(f"{name:16s} {milliseconds:6.3f} ms")
    rate = 4 * B * N_IN * N_OUT / (parts["forward product"] + parts["kernel gradient"]) / 1e6
    print(f"the two products: {rate:.0f} GFLOP/s")
    machine.keep("gemm_bound", {"machine": machine.facts(), "milliseconds": parts})


if __name__ == "__main__":
    main()
