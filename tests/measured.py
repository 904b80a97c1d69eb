"""What benchmarks measured, as `benchmarks/results` has it, for tests of the pages that show it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def result(name: str) -> Any:
    """A result by its file's name, without ``.json``."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def share(part: float, decimals: int = 0) -> str:
    """A share as the pages have it: "98.5 %"."""
    return f"{part:.{decimals}%}".replace("%", " %")


def rates(size: int) -> tuple[str, str]:
    """Examples per second of examples/compare_devices.py: one trial alone, and two at once."""
    (run,) = result("compare_devices")["runs"]
    cells = [
        cell
        for cell in run["cells"]
        if cell["spot"]["batch_size"] == size
        and cell["state"] == "measured"
        and cell["spot"]["plan"] != "fit"
    ]
    alone, two = (
        max(cell["examples_per_second"] for cell in cells if cell["at_once"] == n) for n in (1, 2)
    )
    return f"{alone:.0f}", f"{two:.0f}"


class Printed:
    """What runs on a card printed; a section goes up to the next line without indent."""

    def __init__(self, name: str) -> None:
        self.text = (RESULTS / f"{name}.txt").read_text(encoding="utf-8")

    def figure(self, section: str, row: str, pattern: str) -> str:
        """A number in the one row of a section that begins so."""
        parts = re.split(r"\n(?! )", self.text)
        (part,) = (part for part in parts if part.startswith(section))
        (line,) = (line for line in part.splitlines() if line.startswith(f"  {row}"))
        return re.findall(pattern, line)[0]

    def seconds(self, section: str, row: str) -> str:
        return f"{float(self.figure(section, row, r'cold +([0-9.]+) s')):.1f} s"
