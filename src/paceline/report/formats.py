"""Formats: numbers and durations as people read them, and JSON that every parser can read."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Columns of a line of text at most, because longer lines are harder to read.
READABLE = 100
#: Costs that are integers.
COUNTED = ("params", "bytes", "flops")
#: Decimals of a number in a column at most; beyond, all are written with powers of ten.
_MOST_DECIMALS = 8
#: A part of a duration as people type it, and the seconds of its unit.
_DURATION_PART = r"(\d+(?:\.\d+)?)([dhms])"
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


def objective(name: str, value: float | None) -> str:
    """Return the value of an objective; of a cost that is counted as an integer."""
    whole = name in COUNTED and value is not None
    return f"{value:,.0f}" if whole else metric(value)


def objectives(name: str, values: Sequence[float | None]) -> list[str]:
    """Return the values of an objective in a column, in one precision."""
    if name in COUNTED:
        return [objective(name, value) for value in values]
    return metrics(values)


def metric(value: float | None) -> str:
    """Return a metric with four decimals; with four digits if it is tiny or huge."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4f}"
    return f"{value:.4g}"


def metrics(values: Sequence[float | None]) -> list[str]:
    """Return the metrics of a column in one precision: four digits of the smallest, four decimals.

    Where that takes more than eight decimals, all have four digits and a power of ten.
    """
    known = [abs(v) for v in values if v is not None and math.isfinite(v) and v != 0]
    least = math.floor(math.log10(min(known, default=1.0)))
    decimals = max(4, 3 - least) if least < -3 else 4
    wide = max(known, default=0.0) >= 1e5 or decimals > _MOST_DECIMALS
    form = ".3e" if wide else f".{decimals}f"
    return [metric(v) if v is None or not math.isfinite(v) else format(v, form) for v in values]


def apart(first: float, second: float) -> tuple[str, str]:
    """Return two metrics in one precision, in which they differ unless they are equal."""
    texts, digits = metrics([first, second]), 5
    while texts[0] == texts[1] and first != second and digits <= 17:  # all that a float has
        texts, digits = [f"{value:.{digits}g}" for value in (first, second)], digits + 1
    return texts[0], texts[1]


def difference(value: float) -> str:
    """Return a difference of metrics with four decimals, or with two digits if that is nothing."""
    if 5e-5 <= abs(value) < 1e-3:
        return f"{value:.4f}"
    return f"{value:.2g}" if 0 < abs(value) < 5e-5 else metric(value)


def hparam(value: Any) -> str:
    """Return the value of a hyperparameter in up to six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def hparam_column(values: Sequence[Any]) -> list[str]:
    """Return the values of a hyperparameter in a column; of floats all in one precision.

    It is the least one that shows each value as ``hparam`` does, but at most eight decimals, which
    are at least four digits. If a value is below 1e-4, all have a power of ten.
    """
    floats = [v for v in values if isinstance(v, float) and math.isfinite(v)]
    if not floats or any(isinstance(v, float) and not math.isfinite(v) for v in values):
        return [hparam(value) for value in values]
    exact = [float(hparam(value)) for value in floats]

    def fits(form: str) -> bool:
        return all(float(format(value, form)) == value for value in exact)

    forms = [f".{digits}f" for digits in range(_MOST_DECIMALS + 1)]
    least = min((abs(value) for value in exact if value), default=1.0)
    rest = [forms[-1]] if least >= 1e-4 else [f".{digits}e" for digits in range(6)]
    form = next(filter(fits, [*forms, *rest]), rest[-1])
    return [format(v, form) if isinstance(v, float) else hparam(v) for v in values]


def hparam_cells(rows: Sequence[Mapping[str, Any]], name: str, missing: str) -> list[str]:
    """Return a hyperparameter's column, with ``missing`` where a row has no such value."""
    there = iter(hparam_column([row[name] for row in rows if name in row]))
    return [next(there) if name in row else missing for row in rows]


def hparams(values: Mapping[str, Any]) -> str:
    """Return several hyperparameters on one line: ``dropout 0.2, lr 0.004``."""
    return ", ".join(f"{name} {hparam(value)}" for name, value in values.items())


def count(n: int, noun: str) -> str:
    """Return a number of things: ``1 trial``, ``2,500 trials``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def repeated(numbers: Sequence[int]) -> str:
    """Return numbers as "3 x 2, 5", each once, with how often it comes."""
    counts = Counter(numbers)
    return ", ".join(f"{number}" + (f" x {n}" if n > 1 else "") for number, n in counts.items())


def kind_of(reason: str) -> str:
    """Return a reason without what differs between trials: numbers, and hyperparameters."""
    return _NUMBER.sub("#", reason.partition("\n")[0].partition(", with {")[0])[:200]


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return the last reason of each kind -> how many are of that kind, the most frequent first."""
    found: dict[str, tuple[str, int]] = {}
    for reason in reasons:
        key = kind_of(reason)
        found[key] = reason, found.get(key, ("", 0))[1] + 1
    return dict(sorted(found.values(), key=lambda pair: -pair[1]))


def count_reasons(reasons: Iterable[str]) -> list[str]:
    """Return texts such as ``12 by params 310,442 > 200,000 (the last one)``."""
    return [
        f"{count:,} by {reason}{' (the last one)' if count > 1 and _NUMBER.search(reason) else ''}"
        for reason, count in grouped(reasons).items()
    ]


def rate(value: float | None) -> str:
    """Return trial-epochs per second in three digits, without decimals from 100 on."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return seconds as ``0:12``, ``3:05`` or ``2:05:09``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def parse_duration(text: str) -> float | None:
    """Return the seconds of ``30m``, ``1h30m``, ``90s`` or ``2d``; None for other text."""
    if not re.fullmatch(f"(?:{_DURATION_PART})+", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_DURATION_PART, text))


def seconds(value: float | None) -> str:
    """Return measured seconds as ``0.38 s`` or ``4.2 s``; from a minute on as ``duration`` does."""
    if value is None or not math.isfinite(value):
        return "-"
    if value >= 60:
        return duration(value)
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


def seconds_column(values: Sequence[float | None]) -> list[str]:
    """Return measured seconds of a column in one precision; from ten minutes on as durations."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if max(known, default=0.0) >= 600:
        return [duration(value) for value in values]
    decimals = 2 if known and min(known) < 1 and max(known) < 60 else 1
    return ["-" if v is None or v not in known else f"{v:.{decimals}f} s" for v in values]


def fine(value: float | None) -> str:
    """Return measured seconds in three digits with a unit: ``85.1 us``, ``2.40 ms``, ``1.32 s``."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 100:
        return duration(value)
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if abs(value) * factor >= 1 or (unit == "s" and abs(value) >= 0.1):
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value * 1e6)} us"


def amount(value: float | None) -> str:
    """Return a large number in three digits with a prefix, for a unit to follow: ``59.0 G``."""
    if value is None or not math.isfinite(value):
        return "-"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{_three(value / factor)} {prefix}"
    return f"{_three(value)} "


def size(value: float | None) -> str:
    """Return bytes as ``2.11 MB``."""
    return "-" if value is None else f"{amount(value)}B"


def _three(value: float) -> str:
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}"


def boxed(title: str, text: str, code: Sequence[str]) -> str:
    """Return a warning that nobody overlooks, with lines of code that can be pasted.

    ``text`` is wrapped; the lines of ``code`` stay at the left edge, without a frame.
    """
    width = 76
    lines = [f"\u250c\u2500 {title} ".ljust(width, "\u2500")]
    lines += [f"\u2502 {line}" for line in textwrap.wrap(text, width - 2)]
    return "\n".join(["", *lines, "", *code, "", "\u2514".ljust(width, "\u2500")])


def visible(text: str) -> str:
    """Return a text without control characters: a stranger's names must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def state(name: str) -> str:
    """Return what people are told of a state, where Optuna's word does not say what happened."""
    return {"pruned": "stopped early"}.get(name, name)


def reached(state: str, epochs: int, best_epoch: int | None) -> str:
    """Return in which epoch a trial reached its value, and whether it has trained to its end.

    ``best_epoch`` counts from 1; None if it is not known.
    """
    ends = {"pruned": ", stopped early", "running": ", unfinished", "paused": ", unfinished"}
    text = count(epochs, "epoch")
    if best_epoch and epochs > 1:
        text = f"epoch {best_epoch} of {epochs}"
    return text + ends.get(state, "")


def strict(value: Any, digits: int = 17) -> Any:
    """Return ``value`` in the types of JSON; a number that is not finite becomes None.

    NumPy scalars become Python numbers, tuples and sets become lists, and any other object becomes
    its text. Numbers have this many digits; 17 show a number exactly.
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [strict(item, digits) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a NumPy scalar
        return strict(value.item(), digits)
    return str(value)


def to_json(value: Any) -> str:
    """Return one line of strict JSON."""
    return json.dumps(strict(value), allow_nan=False, ensure_ascii=False)
