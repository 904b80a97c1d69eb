"""What callbacks leave in an epoch's logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Those logs that are numbers; callbacks may add what they like."""
    found = {}
    for name, value in logs.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found
