"""Processes of a cluster of this machine."""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found
