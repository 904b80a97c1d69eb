"""What is wrong with a value that was read: its field, what that holds, and what was expected."""

from __future__ import annotations

import re
from typing import Any

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:key in )?`(?P<path>.*)`)?$", re.S)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def why(error: Exception, value: Any = None, what: str = "it") -> str:
    """Return what msgspec found wrong: the field, what it holds, what was expected.

    ``value`` was compared with a type, and the part of it that is wrong is shown; ``what`` is its
    name in messages. The error may be another one of reading.
    """
    match = _AT.match(str(error))
    said, path = (match["what"], match["path"]) if match is not None else (str(error), None)
    said = said.replace("`", "") or type(error).__name__
    said = said[:1].lower() + said[1:] if said[1:2].islower() else said
    if path is None:
        return f"{what} is {shown(value)}: {said}" if value is not None else said
    steps = list(_STEP.finditer(path))
    name = "".join(step[0] for step in steps).removeprefix(".")
    name = f"{what}, {name}" if what != "it" else name
    if said.startswith("object missing"):
        return f"{name}: {said}"
    found: Any = value
    for step in steps:
        try:
            found = found[step[1]] if step[1] is not None else found[int(step[2])]
        except (KeyError, IndexError, TypeError):
            return f"{name}: {said}"
    return f"{name} is {shown(found)}: {said}"


def shown(value: Any) -> str:
    """Return a value as a message shows it: in ASCII, and short."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; nesting without end
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else f"{text[:57]}..."
