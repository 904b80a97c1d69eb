"""What follows from the measurements, in sentences with numbers.

Every function takes records and returns text; none measures anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.benchmark.records import CellConfig, Curve, FirstEpoch, Measurement, Run, labels
from paceline.report import formats

#: A cell is faster than another if its rate is higher by more than this share and by more than the
#: spread of both timings.
CLEARLY = 0.05
#: A larger batch is worth it if it gains at least this share of the rate.
PAYS = 0.10

Topic = Literal["fastest", "batch", "slots", "devices", "backends", "scaling", "memory", "accuracy"]


_Named = tuple[str, Curve]


@dataclass(frozen=True)
class Advice:
    """One finding."""

    topic: Topic
    text: str  # one to three sentences


def advise(runs: Sequence[Run], target_value: float | None = None) -> list[Advice]:
    """Returns all findings about runs of one model, which may be runs on several devices.

    ``target_value`` is a value of the metric, for a sentence on which batch size reaches it
    soonest.
    """
    found: list[Advice] = []
    accuracy = [Advice("accuracy", text) for text in accuracy_sentences(runs, target_value)]
    best = fastest(runs)
    if best is None:
        return accuracy
    run, measurement = best
    names = labels(runs)
    where = next(name for name, each in zip(names, runs, strict=True) if each is run)
    text = _fastest(run, measurement, where if len(runs) > 1 else None)
    if sum(len(each.measured) for each in runs) == 1:
        text += " Nothing else was measured to compare it with."
    found.append(Advice("fastest", text))
    for label, each in zip(names, runs, strict=True):
        name = f"On {label}: " if len(runs) > 1 else ""
        for advice in (_batch(each), _slots(each), _scaling(each), _memory(each)):
            if advice is not None:
                found.append(Advice(advice.topic, name + advice.text))
    pairs = itertools.combinations(zip(names, runs, strict=True), 2)
    found += [advice for one, other in pairs if (advice := _pair(one, other)) is not None]
    return found + accuracy


def fastest(runs: Sequence[Run]) -> tuple[Run, Measurement] | None:
    """Returns the measurement with the most examples per second, and its run; None without any."""
    measurements = [(run, measurement) for run in runs for measurement in run.measured]
    return max(measurements, key=lambda pair: pair[1].rate, default=None)


def clearly_faster(a: Measurement, b: Measurement) -> bool:
    """Whether ``a`` is faster than ``b`` by more than the timings of both scatter."""
    return a.rate > b.rate * (1 + max(CLEARLY, a.spread + b.spread))


def way(config: CellConfig) -> str:
    """Returns how trials train, as people read it: ``vectorized, 2 x 8 trials at once``."""
    if config.plan == "fit":
        text = "Keras' fit"
    elif config.at_once == 1:
        text = f"{config.plan}, one trial"
    else:
        of = (
            f"{config.packs} x {config.slots}"
            if min(config.packs, config.slots) > 1
            else config.at_once
        )
        text = f"{config.plan}, {of} trials at once"
    if config.data_devices > 1:
        text += f", each batch split over {config.data_devices} devices"
    elif config.trial_devices > 1:
        text += f" over {config.trial_devices} devices"
    return text


def _fastest(run: Run, measurement: Measurement, name: str | None) -> str:
    config = measurement.config
    where = "" if name is None else f"{name}, "
    epoch = measurement.epoch(run.n_examples) or 0.0
    text = (
        f"Fastest: {where}batch {config.batch_size}, {way(config)}: "
        f"{measurement.rate:,.0f} examples/s. "
        f"A trial's epoch of {run.n_examples:,} examples takes {formats.fine(epoch)}"
    )
    text += " as its share of the time." if config.at_once > 1 else "."
    close = [
        other
        for other in run.measured
        if other is not measurement
        and not clearly_faster(measurement, other)
        and other.config.at_once > 0
    ]
    if close:
        other = max(close, key=lambda each: each.rate)
        text += (
            f" Batch {other.config.batch_size}, {way(other.config)}, is equally fast within the "
            f"accuracy of this measurement ({other.rate:,.0f})."
        )
    return text


def _batch(run: Run) -> Advice | None:
    """Where a larger batch stops paying, judged by the way that most batch sizes have in common."""
    ways: dict[tuple[object, ...], list[Measurement]] = {}
    for measurement in run.measured:
        ways.setdefault(measurement.config.way, []).append(measurement)
    if not ways:
        return None
    measurements = max(ways.values(), key=lambda each: (len(each), max(c.rate for c in each)))
    measurements = sorted(measurements, key=lambda measurement: measurement.config.batch_size)
    if len(measurements) < 2:
        return None
    knee = next(
        i
        for i, measurement in enumerate(measurements)
        if all(other.rate <= measurement.rate * (1 + PAYS) for other in measurements[i + 1 :])
    )
    at, first, last = measurements[knee], measurements[0], measurements[-1]
    size, how = at.config.batch_size, way(at.config)
    if knee == len(measurements) - 1:
        before = measurements[-2]
        text = (
            f"The largest batch is still faster: batch {size} trains {at.rate / before.rate:.1f} "
            f"times as many examples per second as batch {before.config.batch_size} ({how})."
        )
    elif knee == 0:
        gain = max(measurement.rate for measurement in measurements[1:]) / at.rate - 1
        most = f"at most {gain:.0%}" if gain >= 0.005 else "nothing"
        text = (
            f"A batch larger than {size} isn't worth it: up to batch {last.config.batch_size} the "
            f"gain is {most} ({how})."
        )
    else:
        gain = max(measurement.rate for measurement in measurements[knee + 1 :]) / at.rate - 1
        more = f"at most {gain:.0%} more" if gain >= 0.005 else "no more"
        text = (
            f"A batch larger than {size} isn't worth it. {size} trains {at.rate / first.rate:.1f} "
            f"times as many examples per second as {first.config.batch_size}, but up to "
            f"{last.config.batch_size} there is {more} ({how})."
        )
    return Advice("batch", text)


def _slots(run: Run) -> Advice | None:
    """Whether training several trials at once is faster, and how many."""
    packed = [c for c in run.measured if c.config.at_once > 1 and c.config.data_devices == 1]
    sizes = {c.config.batch_size for c in packed}
    alone = [c for c in run.measured if c.config.at_once == 1 and c.config.devices == 1]
    alone = [c for c in alone if c.config.plan != "fit" and c.config.batch_size in sizes]
    if not packed or not alone:
        return None
    best = max(packed, key=lambda measurement: measurement.rate)
    same = [c for c in alone if c.config.batch_size == best.config.batch_size]
    if not same:
        return None
    single = max(same, key=lambda measurement: measurement.rate)
    size = best.config.batch_size
    if not clearly_faster(best, single):
        text = (
            f"Training several trials at once isn't faster at batch {size}: {best.rate:,.0f} "
            f"examples/s ({way(best.config)}), compared with {single.rate:,.0f} for one trial at "
            "a time."
        )
        return Advice("slots", text)
    rivals = [c for c in packed if c.config.batch_size == size and c.rate > 0.95 * best.rate]
    fewest = min(rivals, key=lambda measurement: (measurement.config.at_once, -measurement.rate))
    text = (
        f"Training several trials at once is faster at batch {size}: {way(fewest.config)}, train "
        f"{fewest.rate / single.rate:.1f} times as many examples per second as one "
        f"({fewest.rate:,.0f} and {single.rate:,.0f})."
    )
    more = [c for c in packed if c.config.batch_size == size]
    more = [c for c in more if c.config.at_once > fewest.config.at_once]
    if more:
        text += " More trials at once gain less than 5 %."
    if not best.config.usual and any(c.config.usual for c in more + rivals):
        usual = next(c for c in run.measured if c.config.usual)
        if clearly_faster(fewest, usual):
            text += f" A search uses {way(usual.config)} by default."
    return Advice("slots", text)


def _scaling(run: Run) -> Advice | None:
    """How many times faster several devices are than one, and the scaling efficiency of that."""
    sentences = []
    for data in (False, True):
        several = [
            c for c in run.measured if c.config.devices > 1 and (c.config.data_devices > 1) is data
        ]
        if not several:
            continue
        best = max(several, key=lambda measurement: measurement.rate)
        ones = [
            c
            for c in run.measured
            if c.config.devices == 1
            and c.config.plan != "fit"
            and c.config.batch_size == best.config.batch_size
            # Efficiency compares with one device that trains what each of the several has to train.
            and c.config.at_once * best.config.trial_devices == best.config.at_once
        ]
        if not ones:
            continue
        one = max(ones, key=lambda measurement: measurement.rate)
        n = best.config.devices
        what = "each batch split over them" if data else "trials spread over them"
        sentences.append(
            f"{n} devices, {what}: {best.rate / one.rate:.1f} times one device at batch "
            f"{best.config.batch_size} (scaling efficiency {best.rate / one.rate / n:.0%})."
        )
    return Advice("scaling", " ".join(sentences)) if sentences else None


def _memory(run: Run) -> Advice | None:
    tight = [measurement for measurement in run.cells if measurement.fits is False]
    if not tight:
        return None
    measurement = min(tight, key=lambda each: (each.config.batch_size, each.config.at_once))
    return Advice(
        "memory",
        f"Batch {measurement.config.batch_size}, {way(measurement.config)}, does not fit into the "
        "memory.",
    )


def _pair(one: tuple[str, Run], other: tuple[str, Run]) -> Advice | None:
    """Which of two devices, or of two backends, is faster at which batch sizes."""
    (name, a), (other_name, b) = one, other
    topic: Topic = "devices" if a.backend == b.backend else "backends"
    # Keras' fit is the only way that different backends have.
    ours, theirs = (_fastest_at(run, fit=a.backend != b.backend) for run in (a, b))
    sizes = sorted(set(ours) & set(theirs))
    if not sizes:
        return None
    faster = [
        name
        if clearly_faster(ours[size], theirs[size])
        else other_name
        if clearly_faster(theirs[size], ours[size])
        else None
        for size in sizes
    ]
    ratio = [ours[size].rate / theirs[size].rate for size in sizes]

    def times(i: int) -> str:
        return f"{max(ratio[i], 1 / ratio[i]):.1f} times at batch {sizes[i]}"

    named = [each for each in faster if each is not None]
    if not named:
        text = f"{name} and {other_name} are equally fast at every batch size measured."
    elif len(set(named)) == 1:
        winner, loser = (name, other_name) if named[0] == name else (other_name, name)
        ends = times(0) if len(sizes) == 1 else f"{times(0)}, {times(len(sizes) - 1)}"
        every = "at every batch size measured" if None not in faster else "where they differ"
        text = f"{winner} is faster than {loser} {every}: {ends}."
    else:
        turn = next(i for i in range(1, len(sizes)) if faster[i] and faster[i] != named[0])
        last = max(i for i in range(turn) if faster[i] == named[0])
        text = (
            f"{named[0]} is faster up to batch {sizes[last]} ({times(last)}), {faster[turn]} from "
            f"batch {sizes[turn]} on ({times(turn)})."
        )
    return Advice(topic, text)


def _fastest_at(run: Run, *, fit: bool) -> dict[int, Measurement]:
    """The fastest measurement at each batch size, in any way or in Keras' ``fit``."""
    found: dict[int, Measurement] = {}
    for measurement in run.measured:
        size = measurement.config.batch_size
        if measurement.config.plan == "fit" or not fit:
            found[size] = max(found.get(size, measurement), measurement, key=lambda each: each.rate)
    return found


def reached(curve: Curve, target_value: float) -> tuple[int, float] | None:
    """Returns epochs and seconds until a curve is as good as a target; None if it never is."""
    for epoch, (value, seconds) in enumerate(zip(curve.values, curve.seconds, strict=False), 1):
        if value >= target_value if curve.direction == "maximize" else value <= target_value:
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


def accuracy_sentences(runs: Sequence[Run], target_value: float | None) -> list[str]:
    """Returns sentences that compare the curves of all runs: at equal epochs, at equal seconds.

    One of them says when a target is reached, if there is one.
    """
    names = labels(runs) if len(runs) > 1 else [""] * len(runs)
    curves = [(name, c) for name, run in zip(names, runs, strict=True) for c in run.curves]
    curves = [(name, curve) for name, curve in curves if curve.values]
    if not curves:
        return []
    found = []
    if len(curves) > 1:
        found.append(_equal(curves))
    if target_value is not None:
        found.append(_until(curves, target_value))
    return found


def _equal(curves: Sequence[_Named]) -> str:
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
        f"training: {by_seconds}. Each batch size was trained with one seed, so small differences "
        "may be luck."
    )


def _until(curves: Sequence[_Named], target_value: float) -> str:
    metric = curves[0][1].metric
    arrived = [(each, at) for each in curves if (at := reached(each[1], target_value)) is not None]
    missed = [each for each in curves if reached(each[1], target_value) is None]
    if not arrived:
        best = ", ".join(
            f"{_label(each)} {formats.metric(best_until(each[1], float('inf')))}" for each in missed
        )
        return f"No batch size reaches {metric} {target_value:g}; the best are {best}."
    arrived.sort(key=lambda pair: pair[1][1])
    (first, (epoch, seconds)), *others = arrived
    text = (
        f"{metric} {target_value:g} is reached first with {_label(first)}: after "
        f"{formats.fine(seconds)} of training, {_epochs(epoch)}"
    )
    rest = [f"{_label(each)}: {formats.fine(s)}, {_epochs(e)}" for each, (e, s) in others]
    rest += [
        f"{_label(each)}: not in {_epochs(len(each[1].values))}, best "
        f"{formats.metric(best_until(each[1], float('inf')))}"
        for each in missed
    ]
    return f"{text} ({'; '.join(rest)})." if rest else f"{text}."


def _label(each: _Named) -> str:
    name, curve = each
    return f"batch {curve.batch_size}{f' on {name}' if name else ''}"


def _epochs(n: int) -> str:
    return "1 epoch" if n == 1 else f"{n} epochs"


def explain(first: FirstEpoch, n_examples: int) -> tuple[str, list[tuple[str, str, str]], str]:
    """Returns why the first epoch of Keras' ``fit`` is slow, where the data have ``n_examples``.

    This is a headline with the seconds; the seconds, the share and the name of each part of them;
    and a closing sentence.
    """
    full = -(-n_examples // first.batch_size)
    of = f"{first.steps:,} steps"
    if first.steps < full:
        of += f" (a part of the data; all data take {full:,} steps)"
    seconds = formats.fine
    head = (
        f"The first epoch of Keras' fit takes {seconds(first.first)}, a later one "
        f"{seconds(first.later)}: batch {first.batch_size}, {of}. The difference of "
        f"{seconds(first.extra)} is a cost that occurs once:"
    )
    parts: list[tuple[str, float | None]] = [
        ("tracing: Keras' Python code runs once and is recorded as a program", first.trace),
        ("lowering: JAX translates the program into XLA's language", first.lower),
        (f"compiling: XLA compiles {_programs(first.programs)} to machine code", first.compile),
        (
            "starting up: Keras prepares the training, and the first step allocates memory"
            if first.compile is not None
            else "tracing, compiling and starting up, until the end of the first step",
            first.startup,
        ),
    ]
    rest = first.extra - first.explained
    if abs(rest) > 0.02 * first.extra:
        parts.append(("unexplained (times vary)", rest))
    extra = first.extra if first.extra > 0 else float("inf")
    last = (
        "Keras' fit has this cost again for each model and batch size. Paceline has it once for "
        "all trials that share a program, and caches the compiled program on disk."
    )
    shares = [(seconds(n), f"{n / extra:.0%}", text) for text, n in parts if n is not None]
    return head, shares, last


def _programs(n: int | None) -> str:
    return "one program" if n == 1 else f"{n or 'its'} programs"
