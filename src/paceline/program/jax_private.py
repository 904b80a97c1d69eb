"""The only place that touches what JAX does not publish; read for JAX 0.6.2 to 0.10.2.

``backends_are_initialized``
    tells whether JAX has made its devices, when XLA reads XLA_FLAGS. Each public name makes the
    devices that it is asked for, and JAX's cache tells programs apart by flags that XLA has not
    read. Where the name is not there, the answer is yes, and XLA keeps its own way to compile.

This module loads nothing: ``import paceline`` asks before there is a use for JAX.
"""

from __future__ import annotations

import sys


def has_devices() -> bool:
    """Whether JAX has made its devices, and XLA no longer reads XLA_FLAGS."""
    if "jax" not in sys.modules:
        return False
    bridge = sys.modules.get("jax._src.xla_bridge")
    told = getattr(bridge, "backends_are_initialized", None)
    return told is None or bool(told())
