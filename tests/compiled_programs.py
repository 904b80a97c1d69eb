"""What XLA has compiled in this process: names of programs, in order."""

from __future__ import annotations

import jax

#: Names of everything that XLA compiled; a listener cannot be taken away again in every JAX.
COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration_secs, **what: (
        COMPILED.append(str(what.get("fun_name", "?"))) if "backend_compile" in event else None
    )
)
