"""Names of columns: what users call a metric, and what Keras called it."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.compat.talos.errors import TalosParamsError


def column(name: str, columns: Iterable[str], what: str = "metric") -> str:
    """The column that a metric's name stands for.

    Keras calls ``metrics=["accuracy"]`` accuracy where it once said acc; Talos' own defaults and
    many notebooks still do.

    Raises:
        TalosParamsError: There is none.
    """
    columns = list(columns)
    for known in (name, *_others(name)):
        if known in columns:
            return known
    raise TalosParamsError(f"{what}: {name!r} is not one of {', '.join(map(str, columns))}.")


def _others(name: str) -> tuple[str, ...]:
    prefix, base = ("val_", name[4:]) if str(name).startswith("val_") else ("", str(name))
    twins = {"acc": "accuracy", "accuracy": "acc"}
    return (prefix + twins[base],) if base in twins else ()
