"""Bands of widths: how they split a space, and that what is chosen takes least."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.executor.base import SiblingModelBuilder
from paceline.executor.sharing import costs as bands
from paceline.executor.sharing.costs import (
    ToExpect,
    WidthValues,
    WorkByWidths,
    choose_bands,
    spread,
    tops_of,
    within,
)
from paceline.search_space import HyperParameters

EVEN = WidthValues(range(32, 513, 32), [1.0] * 16)


def dense(first: int, second: int) -> list[tuple[int, ...]]:
    """The shapes of the variables of 784-first-second-10."""
    return [(784, first), (first,), (first, second), (second,), (second, 10), (10,)]


def work(first: int = 512, second: int = 512) -> WorkByWidths:
    others = {"first": dense(first + 32, second), "second": dense(first, second + 32)}
    return WorkByWidths({"first": first, "second": second}, dense(first, second), others)


def test_bands_are_equally_likely() -> None:
    assert EVEN.tops(1) == [512]
    assert EVEN.tops(2) == [256, 512]
    assert EVEN.tops(3) == [192, 352, 512]
    assert EVEN.tops(16) == list(EVEN.values)
    assert EVEN.mean_top(1) == 512
    assert EVEN.mean_top(2) == (256 + 512) / 2
    assert EVEN.mean_top(16) == EVEN.mean == 272


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), st.integers(1, 30))
def test_every_value_has_a_band(weights: list[float], count: int) -> None:
    width = WidthValues(range(1, len(weights) + 1), weights)
    tops = width.tops(count)
    assert tops == sorted(set(tops))
    assert len(tops) <= count
    assert tops[-1] == len(weights)
    for value in width.values:
        (top,) = tops_of({"units": tops}, {"units": value})
        own = within(
            {"units": list(width.values), "other": [1, 2]}, {"units": tops}, {"units": value}
        )
        assert own["other"] == [1, 2]
        assert value in own["units"]
        assert own["units"][-1] == top


def test_a_value_beyond_the_last_band_is_in_it() -> None:
    assert tops_of({"units": [4, 8]}, {"units": 9}) == (8,)


def test_the_work_at_other_widths_follows_from_the_numbers_of_weights() -> None:
    for first, second in itertools.product((32, 96, 512), repeat=2):
        sizes = [
            sum(math.prod(s) for s in dense(*w) if len(s) > 1) for w in [(96, 64), (first, second)]
        ]
        share = work(96, 64).share({"first": first, "second": second})
        assert share == pytest.approx(sizes[1] / sizes[0], rel=1e-12)


def test_a_width_that_multiplies_two_axes_counts_twice() -> None:
    recurrent = WorkByWidths({"units": 8}, [(8, 32), (32,)], {"units": [(4, 16), (16,)]})
    assert recurrent.share({"units": 16}) == 4


def takes(counts: tuple[int, ...], cost: float, trials: int) -> float:
    """What bands take, by the rules of the module, without its search."""
    pairs = list(zip(("first", "second"), counts, strict=True))
    tops = work().share({name: EVEN.mean_top(count) for name, count in pairs})
    padding = cost * trials * (tops - work().share({"first": 272, "second": 272}))
    n = math.prod(counts)
    return bands.PADDED * n * (1 - (1 - 1 / n) ** trials) + padding


@pytest.mark.parametrize("trials", [8, 64, 512])
@pytest.mark.parametrize("cost", [0.01, 0.1, 0.5, 2.0])
def test_no_other_bands_take_less(trials: int, cost: float) -> None:
    found = choose_bands({"first": EVEN, "second": EVEN}, work(), expect(cost, trials))
    every = itertools.product(range(1, 9), repeat=2)
    least = min(every, key=lambda counts: takes(counts, cost, trials))
    if found is not None:
        chosen = len(found["first"]), len(found["second"])
        assert takes(chosen, cost, trials) == pytest.approx(takes(least, cost, trials), rel=0.05)


def expect(
    cost: float, trials: int, choices: int = 1, time: float = 0.0, alike: int = 1
) -> ToExpect:
    return ToExpect(cost=cost, trials=trials, choices=choices, time=time, alike=alike)


def chosen(cost: float, trials: int, choices: int = 1, time: float = 0.0, alike: int = 1) -> int:
    """How many bands of one width; 0: programs of their own."""
    one = WorkByWidths({"units": 512}, [(784, 512), (512, 10)], {"units": [(784, 32), (32, 10)]})
    expected = expect(cost, trials, choices, time, alike)
    found = choose_bands({"units": EVEN}, one, expected)
    return 0 if found is None else len(found["units"])


def test_how_many_bands_there_are_follows_from_cost_and_trials() -> None:
    assert chosen(0.01, 8) == 1  # little work: one program
    assert chosen(5.0, 8) == 0  # much work, few trials: programs of their own
    assert [chosen(0.4, trials, 4) for trials in (16, 64, 256)] == [1, 2, 4]
    assert chosen(0.01, 2000) == 2  # a search that is long enough pays for another program


def test_where_time_ends_a_search_bands_are_those_that_train_most_trials() -> None:
    """The time is given in structures: a program of six choices takes as long as five of them."""
    assert [chosen(0.05, 8, 6, time) for time in (4.0, 6.0, 8.0, 100.0)] == [0, 1, 1, 3]
    assert [chosen(1.0, 8, 6, time) for time in (8.0, 1000.0)] == [0, 8]


def test_where_trials_come_in_waves_of_one_structure_fewer_share_programs() -> None:
    """Programs of their own cost four trials as much as one, so padding has to save more."""
    assert [chosen(0.05, 8, 6, time, alike=4) for time in (4.0, 6.0, 8.0, 100.0)] == [0, 0, 1, 3]
    # As of ``layers`` in benchmarks/quality_works.py, where 60 s on two cores are 17 structures for
    # each number of layers. Shared programs trained 112 epochs in the processor time of 192.
    assert [chosen(0.27, 8, 6, 17.0, alike) for alike in (1, 4)] == [1, 0]
    # Trials that train longer than a program compiles come in no waves.
    assert [chosen(cost, 8, 6, 40.0, 4) for cost in (1.0, 1.01)] == [0, 2]


def test_what_bands_save_must_be_worth_twice_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(0.6, 8) == 0
    monkeypatch.setattr(bands, "MARGIN", 1)
    assert chosen(0.6, 8) == 1


def test_widths_on_a_log_scale_have_narrow_bands_below() -> None:
    def build(hp: Any) -> Any:
        hp.Int("even", 1, 64)
        hp.Int("log", 1, 64, sampling="log")
        hp.Int("reversed", 1, 64, sampling="reverse_log")
        return keras.Sequential()

    hp = HyperParameters()
    build(hp)
    models = SiblingModelBuilder(
        list(hp.parameters.values()), hp.hparams, lambda _: None, 1, always=False
    )
    widths = spread(models, ["even", "log", "reversed"])
    assert widths["even"].tops(2) == [32, 64]
    assert widths["log"].tops(2) == [6, 64]
    assert widths["reversed"].tops(2) == [59, 64]
    assert "log" not in spread(models, ["even"])


def test_so_many_structures_are_met_in_the_largest_spaces_too() -> None:
    met = bands.structures_met
    assert [met(1, 8), met(2, 2)] == [1, 1.5]
    assert met(16, 8) == pytest.approx(16 * (1 - (15 / 16) ** 8), rel=1e-12)
    assert met(100**9, 8) == pytest.approx(8)
    assert met(481**6, 64) == pytest.approx(64)


def test_widths_of_many_values_are_split_by_few_looks_at_them() -> None:
    looks = 0

    class Counting(list):
        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    wide = WidthValues(Counting(range(1, 4097)), [1.0] * 4096)
    one = WorkByWidths({"units": 4096}, [(784, 4096)], {"units": [(784, 32)]})
    found = choose_bands({"units": wide}, one, expect(0.1, 10_000_000))
    assert found is None or len(found["units"]) <= 8
    assert looks < 40
