"""Which cells are measured, and which cannot matter."""

from __future__ import annotations

import pytest

from bench_records import measurement
from paceline.benchmark.measure.grid import configs, outside_in, pointless
from paceline.benchmark.records import CellConfig, Measurement

USUAL = CellConfig(0, 8, "vectorized", packs=2)


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([], []),
        ([7], [7]),
        ([1, 2], [1, 2]),
        ([1, 2, 3], [2, 1, 3]),
        ([32, 64, 128, 256, 512, 1024], [128, 32, 1024, 64, 256, 512]),
    ],
)
def test_from_the_middle_to_the_ends(values, order):
    assert outside_in(values) == order


def test_one_trial_the_usual_way_and_fit_come_first():
    found = configs([32, 128, 1024], [1, 4, 16], USUAL)
    assert [(s.batch_size, s.plan, s.at_once) for s in found[:3]] == [
        (128, "sequential", 1),
        (128, "vectorized", 16),
        (128, "fit", 1),
    ]
    assert [s.usual for s in found[:3]] == [False, True, False]


def test_every_way_stands_once_at_every_batch_size():
    found = configs([32, 64], [1, 4], USUAL)
    assert len(found) == len(set(found))
    ways = {s.way for s in found}
    assert len(found) == 2 * len(ways)
    assert {(s.plan, s.slots, s.packs) for s in found} == {
        ("sequential", 1, 1),
        ("vectorized", 8, 2),
        ("fit", 1, 1),
        ("vectorized", 1, 1),
        ("vectorized", 4, 1),
        ("looped", 4, 1),
    }


def test_the_usual_way_is_no_other_one_again():
    found = configs([32], [1], CellConfig(0, 1, "sequential"))
    assert [(s.plan, s.usual) for s in found if s.plan == "sequential"] == [("sequential", True)]


def test_a_model_that_cannot_be_packed_has_fit_only():
    found = configs([32, 64], [1, 4], CellConfig(0, 1, "fit"), packs=False)
    assert [(s.batch_size, s.plan) for s in found] == [(32, "fit"), (64, "fit")]


def test_a_batch_that_does_not_divide_is_not_split():
    found = configs([32, 36], [1], USUAL, meshes=[(1, 8), (8, 1)])
    split = [(s.batch_size, s.trial_devices, s.data_devices) for s in found if s.devices > 1]
    assert sorted(split) == [(32, 1, 8), (32, 8, 1), (36, 8, 1)]


SINGLE = measurement(128, 1000.0)


@pytest.mark.parametrize(
    ("config", "done", "why"),
    [
        # hopeless at one batch size: not tried at another
        (
            CellConfig(32, 4, "looped"),
            [SINGLE, measurement(128, 300.0, 4, "looped")],
            "3.3 times slower",
        ),
        (CellConfig(32, 4, "looped"), [SINGLE, measurement(128, 400.0, 4, "looped")], None),
        # hopeless with 4 slots: not tried with 16
        (
            CellConfig(128, 16, "vectorized"),
            [SINGLE, measurement(128, 100.0, 4, "vectorized")],
            "slots is 10.0 times",
        ),
        # one slot says nothing of more
        (
            CellConfig(128, 16, "vectorized"),
            [SINGLE, measurement(128, 100.0, 1, "vectorized")],
            None,
        ),
        # another plan's fault
        (CellConfig(128, 16, "vectorized"), [SINGLE, measurement(128, 100.0, 4, "looped")], None),
        # what does not fit does not fit with more
        (
            CellConfig(256, 4, "vectorized"),
            [Measurement(CellConfig(128, 4, "vectorized"), "failed", "no", fits=False)],
            "does not fit",
        ),
        (
            CellConfig(64, 4, "vectorized"),
            [Measurement(CellConfig(128, 4, "vectorized"), "failed", "no", fits=False)],
            None,
        ),
        # one trial alone is what the others are compared with: always measured
        (CellConfig(32), [measurement(128, 1000.0, 4, "vectorized"), measurement(128, 10.0)], None),
    ],
)
def test_what_cannot_matter_is_left_out(config, done, why):
    found = pointless(config, done)
    assert found is None if why is None else why in found
