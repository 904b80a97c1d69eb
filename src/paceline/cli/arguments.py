"""Reads arguments of the command line that are more than a word or a number: ``+8``, ``17:30``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TIMEOUT = r"(?:\d+(?:\.\d+)?[dhms])+"  # not compiled here: --help loads this module
_PART = r"(\d+(?:\.\d+)?)([dhms])"
_CLOCK_FORMS = ("%H:%M", "%H:%M:%S")
_DATE_FORMS = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


def trial_count(text: str) -> int | str:
    """Read ``--trials``: ``64`` is the total of the study; ``+8``, eight more, stays text."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
        raise UsageError(
            f"--trials {text!r}: give a whole number of at least 1 (the study's total), "
            "or +N for N more"
        )
    return f"+{int(digits)}" if text.startswith("+") else int(digits)


def stopping_rules(
    target_value: str | None, patience_trials: str | None, max_total_epochs: str | None
) -> dict[str, float | int | None]:
    """Read the options that end a search early, for ``Tuner.search``.

    Those that were not given are left out; ``none``, which means no such rule, is None.
    """
    found: dict[str, float | int | None] = {}
    given = {
        "target_value": target_value,
        "patience_trials": patience_trials,
        "max_total_epochs": max_total_epochs,
    }
    for name, text in given.items():
        if text is None:
            continue
        try:
            number = (
                None if text == "none" else float(text) if name == "target_value" else int(text)
            )
            if name != "target_value" and number is not None and number < 1:
                raise ValueError(text)
        except ValueError:
            kind = (
                "a number such as 0.98"
                if name == "target_value"
                else "a whole number of at least 1"
            )
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {text!r}: give {kind}, or none") from None
        found[name] = number
    return found


def positive(option: str, value: int | None) -> int | None:
    """Check that the value of an option is at least 1; None stays None."""
    if value is not None and value < 1:
        raise UsageError(f"{option} {value}: give a whole number of at least 1")
    return value


def share(value: float | None) -> float | None:
    """Check the value of ``--validation-split``; None stays None."""
    if value is not None and not 0 < value < 1:
        raise UsageError(f"--validation-split {value}: give a share between 0 and 1, such as 0.2")
    return value


def slot_count(text: str) -> int | str:
    """Read ``--parallel-trials``: a whole number of at least 1, or ``auto``."""
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise UsageError(f"--parallel-trials {text!r}: give a whole number of at least 1, or auto")
    return int(text)


def row_limit(*, top: int | None, limit: int | None, every: bool) -> int | None:
    """Return how many trials a table is to have: None: nobody said; 0: all."""
    options = {"--top": top, "--limit": limit, "--all": 0 if every else None}
    given = {option: n for option, n in options.items() if n is not None}
    if len(given) > 1:
        *others, last = given
        raise UsageError(f"{', '.join(others)} and {last} exclude each other; give one")
    return next(iter(given.values()), None)


def timeout_seconds(text: str, option: str = "--timeout") -> float:
    """Read ``30m``, ``1h30m``, ``90s`` or ``2d`` as seconds; a bare number means seconds."""
    try:
        seconds = float(text)
    except ValueError:
        if not re.fullmatch(_TIMEOUT, text):
            raise _bad_timeout(text, option) from None
        seconds = sum(float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text))
    if not 0 < seconds < float("inf"):
        raise _bad_timeout(text, option)
    return seconds


def _bad_timeout(text: str, option: str) -> UsageError:
    return UsageError(f"{option} {text!r}: give a time above 0 such as 90s, 30m or 1h30m")


def deadline(text: str, now: datetime) -> datetime:
    """Read ``--deadline``: a time of day, today or else tomorrow, or a date and a time.

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
            raise UsageError(f"--deadline {text!r} has passed; give a time to come")
        return moment
    raise UsageError(f"--deadline {text!r}: give a time such as 17:30, or 2026-03-01 17:30")


def seconds_to_run(timeout: float | None, until: datetime | None, now: datetime) -> float | None:
    """Return the seconds until the timeout or the deadline, whichever is first: at least 0.001.

    None: no limit. The timeout is in seconds; the deadline and ``now`` have a time zone.
    """
    limits = [] if timeout is None else [timeout]
    if until is not None:
        limits.append(max(0.001, (until - now).total_seconds()))
    return min(limits, default=None)


def output_file(text: str, endings: Sequence[str], ending: str, option: str = "-o") -> Path:
    """Check a file that a command is to write, before the command does its work.

    ``ending`` tells the user what the name may end in; ``option`` is what the file was given with.
    """
    if not text.isprintable():
        raise UsageError(f"{option} {text!a}: there are control characters in it; leave them out")
    path = Path(text)
    if path.suffix not in endings:
        raise UsageError(f"{option} {text}: {ending}")
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # raises where the name is too long; ``is_dir`` may not
        wrong = "is a folder" if path.is_dir() else None
        if wrong is None and not path.parent.is_dir():
            wrong = f"the folder {path.parent} does not exist"
    except OSError as error:  # the name is too long, or the folder cannot be looked into
        raise UsageError(f"{option} {text} cannot be written: {error.strerror or error}") from None
    if wrong is not None:
        raise UsageError(f"{option} {text}: {wrong}; give a file in a folder that exists")
    return path


def device_count(text: str) -> int | None:
    """Read ``--mesh``: a number of devices, or ``auto``."""
    if text == "auto":
        return None
    count, *others = whole_numbers("--mesh", text)
    if others:
        raise UsageError(f"--mesh {text!r}: give one number of devices, such as 4, or auto")
    return count


def whole_numbers(option: str, text: str) -> list[int]:
    """Read a list of numbers such as ``32,64,128``."""
    found = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
            raise UsageError(
                f"{option} {text!r}: {part!r} is no whole number of at least 1; give 32,128,512"
            )
        found.append(int(digits))
    return found


def yes_or_no(text: str) -> bool | str:
    """Read ``--share-widths``: ``yes``, ``no`` or ``auto``."""
    if text not in ("yes", "no", "auto"):
        raise UsageError(f"--share-widths {text!r}: give yes, no or auto")
    return text if text == "auto" else text == "yes"


def slot_counts(text: str) -> list[int | str]:
    """Read a list such as ``1,4,auto``."""
    return [
        part.strip() if part.strip() == "auto" else whole_numbers("--parallel-trials", part)[0]
        for part in text.split(",")
    ]


def hparam_values(pairs: list[str]) -> dict[str, Any]:
    """Read pairs such as ``lr=0.01``; a value is a number, true, false, or else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--hparams {pair!r}: give NAME=VALUE, such as lr=0.01")
        found[name.strip()] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
