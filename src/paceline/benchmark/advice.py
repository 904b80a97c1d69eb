"""What follows from the cells, in sentences with numbers. Pure: records in, sentences out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.benchmark.records import Config, FirstEpoch, Measurement, Run, labels
from paceline.report import numbers

#: So much faster at least, beyond what the timings scatter, to be called faster.
CLEARLY = 0.05
#: A larger batch that gains less than this no longer pays.
PAYS = 0.10

Topic = Literal["fastest", "batch", "slots", "devices", "backends", "scaling", "memory", "accuracy"]


@dataclass(frozen=True)
class Advice:
    """One finding.

    Attributes:
        topic: What it is about.
        text: One to three sentences.
    """

    topic: Topic
    text: str


def advise(runs: Sequence[Run]) -> list[Advice]:
    """All that can be said of the runs; of one model, perhaps on several devices."""
    found: list[Advice] = []
    best = fastest(runs)
    if best is None:
        return found
    run, cell = best
    names = labels(runs)
    where = next(name for name, each in zip(names, runs, strict=True) if each is run)
    found.append(Advice("fastest", _fastest(run, cell, where if len(runs) > 1 else None)))
    for label, each in zip(names, runs, strict=True):
        name = f"On {label}: " if len(runs) > 1 else ""
        for advice in (_batch(each), _slots(each), _scaling(each), _memory(each)):
            if advice is not None:
                found.append(Advice(advice.topic, name + advice.text))
    found += _between(list(zip(names, runs, strict=True)))
    return found


def fastest(runs: Sequence[Run]) -> tuple[Run, Measurement] | None:
    """The cell with the most examples per second; None where nothing was measured."""
    cells = [(run, cell) for run in runs for cell in run.measured]
    return max(cells, key=lambda pair: pair[1].rate, default=None)


def clearly_faster(a: Measurement, b: Measurement) -> bool:
    """Whether a is faster than b by more than the timings of both scatter."""
    return a.rate > b.rate * (1 + max(CLEARLY, a.spread + b.spread))


def way(spot: Config) -> str:
    """How trials train, for people: ``stacked, 2 x 8 trials at once``."""
    if spot.plan == "fit":
        text = "Keras' fit"
    elif spot.at_once == 1:
        text = f"{spot.plan}, one trial"
    else:
        of = f"{spot.lanes} x {spot.slots}" if min(spot.lanes, spot.slots) > 1 else spot.at_once
        text = f"{spot.plan}, {of} trials at once"
    if spot.data_devices > 1:
        text += f", each batch split over {spot.data_devices} devices"
    elif spot.trial_devices > 1:
        text += f" over {spot.trial_devices} devices"
    return text


def _fastest(run: Run, cell: Measurement, name: str | None) -> str:
    spot = cell.spot
    where = "" if name is None else f"{name}, "
    epoch = cell.epoch(run.n_examples) or 0.0
    text = (
        f"Fastest: {where}batch {spot.batch_size}, {way(spot)}: {cell.rate:,.0f} examples/s. "
        f"A trial's epoch of {run.n_examples:,} examples takes {numbers.fine(epoch)}"
    )
    text += " as its share of the time." if spot.at_once > 1 else "."
    close = [
        other
        for other in run.measured
        if other is not cell and not clearly_faster(cell, other) and other.spot.at_once > 0
    ]
    if close:
        other = max(close, key=lambda each: each.rate)
        text += (
            f" Batch {other.spot.batch_size}, {way(other.spot)}, is as fast as far as this "
            f"measurement can tell ({other.rate:,.0f})."
        )
    return text


def best_at(run: Run, batch_size: int) -> Measurement | None:
    """The fastest cell at a batch size; None where none was measured."""
    cells = [cell for cell in run.measured if cell.spot.batch_size == batch_size]
    return max(cells, key=lambda cell: cell.rate, default=None)


def _batch(run: Run) -> Advice | None:
    """Where a larger batch stops paying: in the way that was measured at most batch sizes."""
    ways: dict[tuple[object, ...], list[Measurement]] = {}
    for cell in run.measured:
        ways.setdefault(cell.spot.way, []).append(cell)
    if not ways:
        return None
    cells = max(ways.values(), key=lambda each: (len(each), max(c.rate for c in each)))
    cells = sorted(cells, key=lambda cell: cell.spot.batch_size)
    if len(cells) < 2:
        return None
    knee = next(
        i
        for i, cell in enumerate(cells)
        if all(other.rate <= cell.rate * (1 + PAYS) for other in cells[i + 1 :])
    )
    at, first, last = cells[knee], cells[0], cells[-1]
    size, how = at.spot.batch_size, way(at.spot)
    if knee == len(cells) - 1:
        before = cells[-2]
        text = (
            f"A larger batch still pays at the largest measured: batch {size} does "
            f"{at.rate / before.rate:.1f} times the examples per second of "
            f"{before.spot.batch_size} ({how})."
        )
    elif knee == 0:
        gain = max(cell.rate for cell in cells[1:]) / at.rate - 1
        most = f"at most {gain:.0%}" if gain >= 0.005 else "nothing"
        text = (
            f"A larger batch than {size} does not pay: up to batch {last.spot.batch_size} it "
            f"gains {most} ({how})."
        )
    else:
        gain = max(cell.rate for cell in cells[knee + 1 :]) / at.rate - 1
        more = f"at most {gain:.0%} more" if gain >= 0.005 else "no more"
        text = (
            f"Beyond batch {size} a larger batch stops paying: {size} does "
            f"{at.rate / first.rate:.1f} times the examples per second of "
            f"{first.spot.batch_size}, and up to {last.spot.batch_size} there is {more} ({how})."
        )
    return Advice("batch", text)


def _slots(run: Run) -> Advice | None:
    """Whether training several trials at once pays, and how many."""
    packed = [c for c in run.measured if c.spot.at_once > 1 and c.spot.data_devices == 1]
    sizes = {c.spot.batch_size for c in packed}
    alone = [c for c in run.measured if c.spot.at_once == 1 and c.spot.devices == 1]
    alone = [c for c in alone if c.spot.plan != "fit" and c.spot.batch_size in sizes]
    if not packed or not alone:
        return None
    best = max(packed, key=lambda cell: cell.rate)
    same = [c for c in alone if c.spot.batch_size == best.spot.batch_size]
    if not same:
        return None
    single = max(same, key=lambda cell: cell.rate)
    size = best.spot.batch_size
    if not clearly_faster(best, single):
        text = (
            f"Training several trials at once does not pay at batch {size}: "
            f"{best.rate:,.0f} examples/s ({way(best.spot)}) against {single.rate:,.0f} for one "
            "trial at a time."
        )
        return Advice("slots", text)
    rivals = [c for c in packed if c.spot.batch_size == size and c.rate > 0.95 * best.rate]
    fewest = min(rivals, key=lambda cell: (cell.spot.at_once, -cell.rate))
    text = (
        f"Training several trials at once pays: {way(fewest.spot)}, do "
        f"{fewest.rate / single.rate:.1f} times the examples per second of one trial at a time at "
        f"batch {size} ({fewest.rate:,.0f} against {single.rate:,.0f})."
    )
    more = [c for c in packed if c.spot.batch_size == size]
    more = [c for c in more if c.spot.at_once > fewest.spot.at_once]
    if more:
        text += " More at once gain less than 5 %."
    if not best.spot.usual and any(c.spot.usual for c in more + rivals):
        usual = next(c for c in run.measured if c.spot.usual)
        if clearly_faster(fewest, usual):
            text += f" A search does {way(usual.spot)} by itself."
    return Advice("slots", text)


def _scaling(run: Run) -> Advice | None:
    """What several devices make of it: share of so many times one device."""
    sentences = []
    for data in (False, True):
        several = [
            c for c in run.measured if c.spot.devices > 1 and (c.spot.data_devices > 1) is data
        ]
        if not several:
            continue
        best = max(several, key=lambda cell: cell.rate)
        ones = [
            c
            for c in run.measured
            if c.spot.devices == 1
            and c.spot.plan != "fit"
            and c.spot.batch_size == best.spot.batch_size
            # As many trials as each of the devices has.
            and c.spot.at_once * best.spot.trial_devices == best.spot.at_once
        ]
        if not ones:
            continue
        one = max(ones, key=lambda cell: cell.rate)
        n = best.spot.devices
        what = "each batch split over them" if data else "trials spread over them"
        sentences.append(
            f"{n} devices, {what}: {best.rate / one.rate:.1f} times one device at batch "
            f"{best.spot.batch_size} (scaling efficiency {best.rate / one.rate / n:.0%})."
        )
    return Advice("scaling", " ".join(sentences)) if sentences else None


def _memory(run: Run) -> Advice | None:
    tight = [cell for cell in run.cells if cell.fits is False]
    if not tight:
        return None
    cell = min(tight, key=lambda each: (each.spot.batch_size, each.spot.at_once))
    return Advice(
        "memory",
        f"Batch {cell.spot.batch_size}, {way(cell.spot)}, does not fit into the memory.",
    )


def _between(runs: Sequence[tuple[str, Run]]) -> list[Advice]:
    """Each pair of devices, or of backends: who is faster at which batch sizes."""
    found = []
    for i, a in enumerate(runs):
        for b in runs[i + 1 :]:
            advice = _pair(a, b)
            if advice is not None:
                found.append(advice)
    return found


def _pair(one: tuple[str, Run], other: tuple[str, Run]) -> Advice | None:
    (name, a), (other_name, b) = one, other
    topic: Topic = "devices" if a.backend == b.backend else "backends"
    ours, theirs = _comparable(a, b)
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


def _comparable(a: Run, b: Run) -> tuple[dict[int, Measurement], dict[int, Measurement]]:
    """Cells by batch size: between backends those of Keras' fit, which both have."""
    if a.backend != b.backend:
        found = []
        for run in (a, b):
            cells = [cell for cell in run.measured if cell.spot.plan == "fit"]
            found.append({cell.spot.batch_size: cell for cell in cells})
        return found[0], found[1]
    found = []
    for run in (a, b):
        sizes = {cell.spot.batch_size for cell in run.measured}
        found.append({size: cell for size in sizes if (cell := best_at(run, size)) is not None})
    return found[0], found[1]


def explain(first: FirstEpoch, n_examples: int) -> list[str]:
    """Why the first epoch is slow, in plain words, a line each; the first says how much it is."""
    full = -(-n_examples // first.batch_size)
    of = f"{first.steps:,} steps"
    if first.steps < full:
        of += f" (a part of the data: all of it are {full:,} steps)"
    seconds = numbers.fine
    lines = [
        f"The first epoch of Keras' fit takes {seconds(first.first)}, a later one "
        f"{seconds(first.later)}: batch {first.batch_size}, {of}. "
        f"The {seconds(first.extra)} more are paid once:"
    ]
    parts: list[tuple[str, float | None]] = [
        ("tracing: Keras' Python code runs once and is recorded", first.trace),
        ("lowering: the record becomes a program in XLA's language", first.lower),
        (f"compiling: XLA makes {_programs(first.programs)} of machine code", first.compile),
        (
            "starting up: Keras prepares the training, the first step takes memory"
            if first.compile is not None
            else "tracing, compiling and starting up, until the first step was done",
            first.startup,
        ),
    ]
    rest = first.extra - first.explained
    if abs(rest) > 0.02 * first.extra:
        parts.append(("not accounted for (timings scatter)", rest))
    for text, part in parts:
        if part is not None:
            share = part / first.extra if first.extra > 0 else 0.0
            lines.append(f"{seconds(part):>9}  {share:>4.0%}  {text}")
    lines.append(
        "Another model, or another batch size, pays it again; Paceline pays it once for all trials "
        "that share a program, and keeps the compiled program on disk for the next run."
    )
    return lines


def _programs(n: int | None) -> str:
    return "one program" if n == 1 else f"{n or 'its'} programs"
