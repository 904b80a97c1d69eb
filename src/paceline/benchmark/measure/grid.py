"""Which cells are measured, in which order, and which are left out. Needs no device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from paceline.benchmark.records import CellConfig, Measurement

#: Batch sizes by default: from the default of Keras to what fills an accelerator.
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
#: A way that is this many times slower than the fastest at one batch size is not tried at others.
HOPELESS = 3.0


def configs(
    batch_sizes: Sequence[int],
    slots: Sequence[int],
    usual: CellConfig,
    *,
    packs: bool = True,
    fit: bool = True,
    meshes: Sequence[tuple[int, int]] = (),
) -> list[CellConfig]:
    """Returns all cells to measure, the most telling first.

    One trial alone and the default of a search come first: at the middle batch size, then at the
    smallest and the largest, then between. Other ways follow, in the same order of batch sizes.
    ``usual`` is the default of a search, at any batch size. ``meshes``: (trial, data), devices on
    each axis, of further measurements.
    """
    ways: list[CellConfig] = []
    if packs:
        ways.append(CellConfig(0, 1, "sequential"))
        ways.append(usual)
    if fit:
        ways.append(CellConfig(0, 1, "fit"))
    if packs:
        ways.append(CellConfig(0, 1, "vectorized"))
        for trial, data in meshes:
            ways.append(CellConfig(0, trial, "vectorized", 1, trial, data))  # a trial for each row
        several = sorted({n for n in slots if n > 1})
        # The middle number of slots comes first: it shows whether stacking gains anything at all.
        for n in outside_in(several):
            ways.append(CellConfig(0, n, "vectorized"))
        ways += [CellConfig(0, n, "looped") for n in outside_in(several)]
    found: list[CellConfig] = []
    for way in ways:
        for size in outside_in(sorted(set(batch_sizes))):
            config = replace(way, batch_size=size, usual=packs and way.way == usual.way)
            if size % config.data_devices:
                continue
            if all(config.batch_size != s.batch_size or config.way != s.way for s in found):
                found.append(config)
    # One trial alone, the usual way and fit at one batch size say more than a second batch size.
    middle = outside_in(sorted(set(batch_sizes)))[0]
    telling = [s for s in found if s.batch_size == middle and (s.usual or _alone(s))]
    return [*telling, *(s for s in found if s not in telling)]


def _alone(config: CellConfig) -> bool:
    return config.at_once == 1 and config.plan in ("sequential", "fit") and config.devices == 1


def outside_in(values: Sequence[int]) -> list[int]:
    """Returns sorted values in another order.

    First the middle, then both ends, then what halves the widest gap left.
    """
    if not values:
        return []
    left = list(range(len(values)))
    order = [left[(len(left) - 1) // 2]]
    for end in (0, len(left) - 1):
        if end not in order:
            order.append(end)
    while len(order) < len(left):
        rest = [i for i in left if i not in order]
        order.append(max(rest, key=lambda i: (min(abs(i - j) for j in order), -i)))
    return [values[i] for i in order]


def pointless(config: CellConfig, measurements: Iterable[Measurement]) -> str | None:
    """Returns why a cell need not be measured after those that are done; None if it must be."""
    done = list(measurements)
    if config.usual or _alone(config):
        return None
    for measurement in done:
        if (
            measurement.state == "failed"
            and measurement.fits is False
            and _larger(config, measurement.config)
        ):
            at = measurement.config
            return f"{_way(at)} at batch {at.batch_size} does not fit into the memory"
    for measurement in done:
        if measurement.state != "measured" or _kind(config) != _kind(measurement.config):
            continue
        rivals = [
            other
            for other in done
            if other.state == "measured"
            and other.config.batch_size == measurement.config.batch_size
        ]
        best = max(rivals, key=lambda other: other.rate)
        if measurement.rate * HOPELESS >= best.rate:
            continue
        slower = f"{best.rate / measurement.rate:.1f} times slower than {_way(best.config)}"
        if (
            measurement.config.batch_size != config.batch_size
            and measurement.config.way == config.way
        ):
            return f"{slower} at batch {measurement.config.batch_size}"
        if (
            measurement.config.batch_size == config.batch_size
            and 1 < measurement.config.slots < config.slots
        ):
            return f"{_way(measurement.config)} is {slower} already"
    return None


def _kind(config: CellConfig) -> tuple[str, int, int, int]:
    return config.plan, config.packs, config.trial_devices, config.data_devices


def _larger(a: CellConfig, b: CellConfig) -> bool:
    return (
        _kind(a) == _kind(b)
        and (a.batch_size, a.slots) != (b.batch_size, b.slots)
        and a.batch_size >= b.batch_size
        and a.slots >= b.slots
    )


def _way(config: CellConfig) -> str:
    return f"{config.plan} with {config.slots} slots" if config.slots > 1 else config.plan
