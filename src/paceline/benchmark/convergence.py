"""What accuracy curves say: at equal epochs, at equal seconds, and until a target is reached."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.benchmark.records import Curve, Run, labels
from paceline.report import formats

Named = tuple[str, Curve]


def reached(curve: Curve, target: float) -> tuple[int, float] | None:
    """Returns epochs and seconds until a curve is as good as a target; None if it never is."""
    for epoch, (value, seconds) in enumerate(zip(curve.values, curve.seconds, strict=False), 1):
        if value >= target if curve.direction == "maximize" else value <= target:
            return epoch, seconds
    return None


def best_until(curve: Curve, seconds: float) -> float | None:
    """Returns the best value of a curve within ``seconds``; None if no epoch ended by then."""
    values = [
        value for value, at in zip(curve.values, curve.seconds, strict=False) if at <= seconds
    ]
    return _best(curve, values)


def _best(curve: Curve, values: Sequence[float]) -> float | None:
    return (max if curve.direction == "maximize" else min)(values, default=None)


def sentences(runs: Sequence[Run], target: float | None) -> list[str]:
    """Returns sentences that compare the curves of all runs, one of them on a target, if any."""
    names = labels(runs) if len(runs) > 1 else [""] * len(runs)
    curves = [(name, c) for name, run in zip(names, runs, strict=True) for c in run.curves]
    curves = [(name, curve) for name, curve in curves if curve.values]
    if not curves:
        return []
    found = []
    if len(curves) > 1:
        found.append(_equal(curves))
    if target is not None:
        found.append(_until(curves, target))
    return found


def _equal(curves: Sequence[Named]) -> str:
    metric = curves[0][1].metric
    epochs = min(len(curve.values) for _, curve in curves)
    # Compare up to the end of the curve that ends first: after it, one of the values is missing.
    seconds = min(curve.seconds[-1] for _, curve in curves)

    by_epochs = ", ".join(
        f"{_label(each)} {formats.metric(_best(each[1], each[1].values[:epochs]))}"
        for each in curves
    )
    by_seconds = ", ".join(
        f"{_label(each)} {formats.metric(best_until(each[1], seconds))}" for each in curves
    )
    return (
        f"Best {metric} within {_epochs(epochs)}: {by_epochs}; within {formats.fine(seconds)} of "
        f"training: {by_seconds}. One seed each: small differences may be chance."
    )


def _until(curves: Sequence[Named], target: float) -> str:
    metric = curves[0][1].metric
    arrived = [(each, at) for each in curves if (at := reached(each[1], target)) is not None]
    missed = [each for each in curves if reached(each[1], target) is None]
    if not arrived:
        best = ", ".join(
            f"{_label(each)} {formats.metric(best_until(each[1], float('inf')))}" for each in missed
        )
        return f"No batch size reaches {metric} {target:g}; the best are {best}."
    arrived.sort(key=lambda pair: pair[1][1])
    (first, (epoch, seconds)), *others = arrived
    text = (
        f"{metric} {target:g} is reached soonest with {_label(first)}: after "
        f"{formats.fine(seconds)} of training, {_epochs(epoch)}"
    )
    rest = [f"{_label(each)}: {formats.fine(s)}, {_epochs(e)}" for each, (e, s) in others]
    rest += [
        f"{_label(each)}: not in {_epochs(len(each[1].values))}, best "
        f"{formats.metric(best_until(each[1], float('inf')))}"
        for each in missed
    ]
    return f"{text} ({'; '.join(rest)})." if rest else f"{text}."


def _label(each: Named) -> str:
    name, curve = each
    return f"batch {curve.batch_size}{f' on {name}' if name else ''}"


def _epochs(n: int) -> str:
    return "1 epoch" if n == 1 else f"{n} epochs"
