"""Trials that were rejected before training, by their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


def reason_key(reason: str) -> str:
    """Return a reason without the numbers, which differ between trials."""
    return _NUMBER.sub("#", reason.partition("\n")[0])[:200]


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return the last reason of each kind -> how many are of that kind, the most frequent first."""
    found: dict[str, tuple[str, int]] = {}
    for reason in reasons:
        key = reason_key(reason)
        found[key] = reason, found.get(key, ("", 0))[1] + 1
    return dict(sorted(found.values(), key=lambda pair: -pair[1]))


def count_reasons(reasons: Iterable[str]) -> list[str]:
    """Return texts such as ``12 by params 310,442 > 200,000 (the last one)``."""
    return [
        f"{count:,} by {reason}{' (the last one)' if count > 1 and _NUMBER.search(reason) else ''}"
        for reason, count in grouped(reasons).items()
    ]
