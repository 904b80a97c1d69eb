"""Which cells are measured, in which order, and which cannot matter any more. Needs no device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.benchmark.records import Config, Measurement

#: As in the question that started this: from Keras' default to what fills an accelerator.
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
#: So much slower at a batch size that a way need not be tried at the others.
HOPELESS = 3.0


def spots(
    batch_sizes: Sequence[int],
    slots: Sequence[int],
    usual: Config,
    *,
    packs: bool = True,
    fit: bool = True,
    meshes: Sequence[tuple[int, int]] = (),
) -> list[Config]:
    """All cells, the most telling first.

    That is: one trial alone and what a search would do, at the batch size in the middle, then at
    the smallest and largest, then between; then other ways, in the same order of batch sizes.

    Args:
        batch_sizes: In any order.
        slots: Numbers of trials at once.
        usual: What a search does when nothing is asked of it, at any batch size.
        packs: Whether the model can be packed.
        fit: Whether Keras' own ``fit`` is measured.
        meshes: (trial, data) of several devices to measure too.
    """
    ways: list[Config] = []
    if packs:
        ways.append(Config(0, 1, "sequential"))
        ways.append(usual)
    if fit:
        ways.append(Config(0, 1, "fit"))
    if packs:
        ways.append(Config(0, 1, "stacked"))
        for trial, data in meshes:
            ways.append(Config(0, trial, "stacked", 1, trial, data))  # a trial for each row
        several = sorted({n for n in slots if n > 1})
        # The middle first: whether stacking gains at all shows there.
        for n in outside_in(several):
            ways.append(Config(0, n, "stacked"))
        ways += [Config(0, n, "mapped") for n in outside_in(several)]
    found: list[Config] = []
    first = usual.way
    for way in ways:
        for size in outside_in(sorted(set(batch_sizes))):
            spot = Config(
                size,
                way.slots,
                way.plan,
                way.lanes,
                way.trial_devices,
                way.data_devices,
                usual=packs and way.way == first,
            )
            if spot.data_devices > 1 and size % spot.data_devices:
                continue
            if all(spot.batch_size != s.batch_size or spot.way != s.way for s in found):
                found.append(spot)
    # One trial alone, the usual way and fit in the middle say most: before any second batch size.
    middle = outside_in(sorted(set(batch_sizes)))[0]
    telling = [s for s in found if s.batch_size == middle and (s.usual or _alone(s))]
    return [*telling, *(s for s in found if s not in telling)]


def _alone(spot: Config) -> bool:
    return spot.at_once == 1 and spot.plan in ("sequential", "fit") and spot.devices == 1


def outside_in(values: Sequence[int]) -> list[int]:
    """The middle, the ends, then what halves the widest gap between those taken.

    Args:
        values: Sorted.
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


def pointless(spot: Config, cells: Iterable[Measurement]) -> str | None:
    """Why a cell cannot matter after what was measured; None where it may.

    Args:
        spot: Not measured yet.
        cells: Those that are done.
    """
    done = list(cells)
    if spot.usual or _alone(spot):
        return None
    for cell in done:
        if cell.state == "failed" and cell.fits is False and _larger(spot, cell.spot):
            return f"{_way(cell.spot)} at batch {cell.spot.batch_size} does not fit into the memory"
    for cell in done:
        if cell.state != "measured" or not _same_kind(spot, cell.spot):
            continue
        rivals = [
            other
            for other in done
            if other.state == "measured" and other.spot.batch_size == cell.spot.batch_size
        ]
        best = max(rivals, key=lambda other: other.rate)
        if cell.rate * HOPELESS >= best.rate:
            continue
        slower = f"{best.rate / cell.rate:.1f} times slower than {_way(best.spot)}"
        if cell.spot.batch_size != spot.batch_size and cell.spot.way == spot.way:
            return f"{slower} at batch {cell.spot.batch_size}"
        if cell.spot.batch_size == spot.batch_size and 1 < cell.spot.slots < spot.slots:
            return f"{_way(cell.spot)} is {slower} already"
    return None


def _same_kind(a: Config, b: Config) -> bool:
    return _kind(a) == _kind(b)


def _kind(spot: Config) -> tuple[str, int, int, int]:
    return spot.plan, spot.lanes, spot.trial_devices, spot.data_devices


def _larger(a: Config, b: Config) -> bool:
    return (
        _same_kind(a, b)
        and (a.batch_size, a.slots) != (b.batch_size, b.slots)
        and a.batch_size >= b.batch_size
        and a.slots >= b.slots
    )


def _way(spot: Config) -> str:
    return f"{spot.plan} with {spot.slots} slots" if spot.slots > 1 else spot.plan
