"""Reads arguments of the command line that are more than a word or a number: ``+8``, ``17:30``."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.report import formats

_CLOCK_FORMS = ("%H:%M", "%H:%M:%S")
_DATE_FORMS = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


def _positive_integer(digits: str) -> int | None:
    """The integer, if it is at least 1."""
    return (int(digits) or None) if digits.isascii() and digits.isdigit() else None


def trial_count(text: str) -> int | str:
    """Read ``--trials``: ``64`` is the total of the study; ``+8``, 8 more trials, stays text."""
    number = _positive_integer(text.removeprefix("+"))
    if number is None:
        raise UsageError(
            f"--trials must be an integer of at least 1, or +N for N more trials, got {text!r}."
        )
    return f"+{number}" if text.startswith("+") else number


def stopping_rules(
    target_value: str | None, patience_trials: str | None, max_total_epochs: str | None
) -> dict[str, float | int | None]:
    """Read the options that end a search early, for ``Tuner.search``.

    Options without a value are left out. ``none``, which turns a rule off, is read as None.
    """
    found: dict[str, float | int | None] = {}
    for name, text, kind in (
        ("target_value", target_value, float),
        ("patience_trials", patience_trials, int),
        ("max_total_epochs", max_total_epochs, int),
    ):
        if text is None:
            continue
        try:
            number = None if text == "none" else kind(text)
            if kind is int and number is not None and number < 1:
                raise ValueError(text)
        except ValueError:
            of_kind = "a number" if kind is float else "an integer of at least 1"
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} must be {of_kind}, or none, got {text!r}.") from None
        found[name] = number
    return found


def positive(option: str, value: int | None) -> int | None:
    """Check that the value of an option is at least 1; None stays None."""
    if value is not None and value < 1:
        raise UsageError(f"{option} must be an integer of at least 1, got {value}.")
    return value


def share(value: float | None) -> float | None:
    """Check the value of ``--validation-split``; None stays None."""
    if value is not None and not 0 < value < 1:
        raise UsageError(f"--validation-split must be between 0 and 1, such as 0.2, got {value}.")
    return value


def slot_count(text: str) -> int | str:
    """Read ``--parallel-trials``: an integer of at least 1, or ``auto``."""
    if text == "auto":
        return text
    number = _positive_integer(text)
    if number is None:
        raise UsageError(
            f"--parallel-trials must be an integer of at least 1, or auto, got {text!r}."
        )
    return number


def row_limit(*, top: int | None, limit: int | None, every: bool) -> int | None:
    """Return how many trials a table must show; 0: all; None: no option sets it."""
    options = {"--top": top, "--limit": limit, "--all": 0 if every else None}
    given = {option: n for option, n in options.items() if n is not None}
    if len(given) > 1:
        *others, last = given
        raise UsageError(f"{', '.join(others)} and {last} exclude each other. Use one of them.")
    return next(iter(given.values()), None)


def timeout_seconds(text: str, option: str = "--timeout") -> float:
    """Read ``30m``, ``1h30m``, ``90s`` or ``2d`` as seconds; a bare number means seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = formats.parse_duration(text)
    if seconds is None or not 0 < seconds < math.inf:
        raise UsageError(
            f"{option} must be a time above 0 such as 90s, 30m or 1h30m, got {text!r}."
        )
    return seconds


def deadline(text: str, now: datetime) -> datetime:
    """Read ``--deadline``: a time of day, today or tomorrow, or a date and a time.

    The text is ``17:30`` or ``2026-03-01 17:30`` in local time. ``now`` and the result have a time
    zone.
    """
    for form in _CLOCK_FORMS:
        try:
            clock = datetime.strptime(text, form).time()
        except ValueError:
            continue
        # The time zone is added last, so that a change to summer time before then is counted.
        moment = datetime.combine(now.date(), clock).astimezone()
        if moment <= now:
            moment = datetime.combine(now.date() + timedelta(days=1), clock).astimezone()
        return moment
    for form in _DATE_FORMS:
        try:
            moment = datetime.strptime(text, form).astimezone()
        except ValueError:
            continue
        if moment <= now:
            raise UsageError(f"--deadline must be in the future, got {text!r}.")
        return moment
    raise UsageError(f"--deadline must be a time such as 17:30, or 2026-03-01 17:30, got {text!r}.")


def seconds_to_run(timeout: float | None, until: datetime | None, now: datetime) -> float | None:
    """Return the seconds until the timeout or the deadline, whichever is first: at least 0.001.

    None: no limit. The timeout is in seconds; the deadline and ``now`` have a time zone.
    """
    limits = [] if timeout is None else [timeout]
    if until is not None:
        limits.append(max(0.001, (until - now).total_seconds()))
    return min(limits, default=None)


def output_file(text: str, endings: Sequence[str], option: str = "-o") -> Path:
    """Check the file that ``option`` names, before the command does its work and writes it."""
    if not text.isprintable():
        raise UsageError(f"{option} must not contain control characters, got {text!a}.")
    path = Path(text)
    if path.suffix not in endings:
        raise UsageError(f"{option} must end in {' or '.join(endings)}, got {text}.")
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # raises where the name is too long; ``is_dir`` may not
        if path.is_dir():
            raise UsageError(f"{option} must be a file, got the folder {text}.")
        if not path.parent.is_dir():
            raise UsageError(
                f"{option} must be a file in an existing folder, got {text}. Create the folder "
                f"{path.parent}, or choose another one."
            )
    except OSError as error:  # the name is too long, or the folder cannot be read
        raise UsageError(f"{option} {text} cannot be written: {error.strerror or error}") from None
    return path


def device_count(text: str) -> int | None:
    """Read ``--mesh``: a number of devices, or ``auto``."""
    if text == "auto":
        return None
    count = _positive_integer(text)
    if count is None:
        raise UsageError(f"--mesh must be one number of devices, such as 4, or auto, got {text!r}.")
    return count


def batch_sizes(text: str) -> list[int]:
    """Read a list such as ``32,64,128``."""
    found = [_positive_integer(part.strip()) for part in text.split(",")]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found):
        raise UsageError(
            f"--batch-sizes must be integers of at least 1, such as 32,128,512, got {text!r}."
        )
    return numbers


def yes_or_no(text: str) -> bool | str:
    """Read ``--share-widths``: ``yes``, ``no`` or ``auto``."""
    if text not in ("yes", "no", "auto"):
        raise UsageError(f"--share-widths must be yes, no or auto, got {text!r}.")
    return text if text == "auto" else text == "yes"


def slot_counts(text: str) -> list[int | str]:
    """Read a list such as ``1,4,auto``."""
    return [slot_count(part.strip()) for part in text.split(",")]


def hparam_values(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read pairs such as ``lr=0.01``; a value is a JSON scalar, True, False or text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if "," in text and "=" in text:
            raise UsageError(
                f"{option}: {pair!r} holds several values. Put spaces between them: "
                f"{pair.replace(',', ' ')}"
            )
        if not equals or not name:
            raise UsageError(f"{option} must be NAME=VALUE, such as lr=0.01, got {pair!r}.")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    with contextlib.suppress(ValueError):
        value = json.loads({"True": "true", "False": "false"}.get(text, text))
        return value if isinstance(value, bool | int | float | str) else text
    with contextlib.suppress(ValueError):  # ``.5`` and ``1.`` are not JSON
        return float(text) if math.isfinite(float(text)) else text
    return text
