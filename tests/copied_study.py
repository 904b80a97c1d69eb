"""A small study that a module searches once; ``searched`` of tests/cli copies it for each test."""

from __future__ import annotations

from typing import Any

import paceline
import toys


def tuner(**arguments: Any) -> paceline.Tuner:
    """A tuner of the study."""
    return paceline.Tuner(
        toys.dense, study="s", sampler="random", on_note=lambda text: None, **arguments
    )
