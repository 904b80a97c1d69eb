"""Changes of files at random, and how runs on changed files ended.

Half of the changes are of what JSON says (types, missing names, huge numbers, nesting, half lines,
lines that are there twice), half of bytes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

Change = Callable[[bytes, random.Random], bytes]

STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 3, 2**31, 2**63, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e-320),
    *(
        1e308,
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "x",
        "nan",
        "0",
        "\0\x1b[31m",
        "\ud800",
    ),
    *("é" * 300, [], {}, [[]], [None], {"a": 1}, {"": {}}, [0] * 50, "2026-01-01", "asha:1:1"),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all that a JSON value holds."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def changed(value: Any, draw: random.Random) -> Any:
    """A copy of a JSON value with one change in it."""
    value = json.loads(json.dumps(value))
    found = list(places(value)) if isinstance(value, dict | list) else []
    if not found:
        return draw.choice(STRANGE)
    *path, key = draw.choice(found)
    holder = value
    for step in path:
        holder = holder[step]
    match draw.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 1:
            holder[draw.choice(["x", "op_code", "state", "format", ""])] = holder.pop(key)
        case 2 if isinstance(holder[key], int | float):
            holder[key] = draw.choice([-1, 0, 1, 10, 1e-9, 1e9, 2**53 + 1]) * (holder[key] or 1)
        case 3:
            holder[key] = [holder[key]]
        case _:
            holder[key] = draw.choice(STRANGE)
    return value


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def changed_json(data: bytes, draw: random.Random) -> bytes:
    """A file of one JSON value, with one change of the value."""
    value = json.loads(data)
    text = json.dumps(changed(value, draw))
    if draw.random() < 0.05:
        text = text.replace("null", nested(draw.choice([50, 5000, 200_000])), 1)
    return text.encode()


def changed_lines(data: bytes, draw: random.Random) -> bytes:
    """A journal with one change of a record, or of the lines."""
    lines = data.splitlines()
    at = draw.randrange(len(lines))
    match draw.randrange(10):
        case 0:
            lines.insert(at, lines[at])
        case 1:
            del lines[at]
        case 2:
            lines[at] = lines[at][: draw.randrange(len(lines[at]))]
        case 3:
            lines.append(lines[at])
        case 4:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = changed_json(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def changed_meta(data: bytes, draw: random.Random) -> bytes:
    """A journal with one change of the attribute ``paceline``."""
    lines = data.splitlines()
    at = draw.choice([n for n, line in enumerate(lines) if b'{"paceline":' in line])
    record = json.loads(lines[at])
    record["user_attr"]["paceline"] = changed(record["user_attr"]["paceline"], draw)
    lines[at] = json.dumps(record).encode()
    return b"\n".join(lines) + b"\n"


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """A file with one change of its bytes."""
    at, found = draw.randrange(len(data)), bytearray(data)
    match draw.randrange(7):
        case 0:
            found[at] ^= 1 << draw.randrange(8)
        case 1:
            found[at] = draw.choice(b'\0\n\r "{}[],:0123456789eE+-.\xff')
        case 2:
            found.insert(at, draw.choice(b'\n"{}[],:09e-\\\xff'))
        case 3:
            del found[at : at + draw.choice([1, 1, 2, 10, 500])]
        case 4:
            del found[at:]
        case 5:
            found[at:at] = found[at : at + draw.randrange(1, 200)]
        case 6:
            found[at : at + 16] = bytes(len(found[at : at + 16]))
    return bytes(found)


@dataclass
class Tally:
    """How runs ended."""

    codes: dict[Any, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def count(self, code: Any, said: str, what: str) -> None:
        self.codes[code] = self.codes.get(code, 0) + 1
        told = code == 0 or "paceline: " in said
        if code not in (0, 1, 2) or "Traceback" in said or not told:
            self.bad.append(f"{what}: exit code {code}\n{said[-1500:]}")

    def finish(self, what: str) -> None:
        n = sum(self.codes.values())
        past = self.codes.get(0, 0) / n
        share = f"{past:.0%} got past the checks, exit codes {self.codes}"
        sys.stdout.write(f"\n{what}: {n:,} runs, {share}\n")
        assert not self.bad, f"{len(self.bad)} of {n}\n" + "\n\n".join(self.bad[:5])


def mutations(n: int, seed: int, *structural: Change) -> Iterator[tuple[Change, random.Random]]:
    """Half of the changes structural, half of bytes."""
    for at in range(n):
        draw = random.Random(f"{seed} {at}")
        yield (draw.choice(structural) if at % 2 else changed_bytes), draw


def sizes(fast: int, slow: int) -> Any:
    """How many mutations: some in every run of the tests, more in ``make test-slow``."""
    return pytest.mark.parametrize("n", [fast, pytest.param(slow, marks=pytest.mark.slow)])
