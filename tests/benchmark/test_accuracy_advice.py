"""What curves of accuracy say."""

from __future__ import annotations

import pytest

from bench_records import measurement, run
from paceline.benchmark.presentation.advice import accuracy_sentences, best_until, reached
from paceline.benchmark.records import Curve

SMALL = Curve(32, "val_accuracy", "maximize", [0.7, 0.9, 0.95], [1.0, 2.0, 3.0])
LARGE = Curve(512, "val_accuracy", "maximize", [0.5, 0.7, 0.92], [0.4, 0.8, 1.2])
LOSS = Curve(32, "val_loss", "minimize", [0.9, 0.4, 0.5], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("curve", "target", "found"),
    [(SMALL, 0.9, (2, 2.0)), (SMALL, 0.96, None), (LOSS, 0.45, (2, 2.0)), (LOSS, 0.1, None)],
)
def test_when_a_target_is_reached(curve, target, found):
    assert reached(curve, target) == found


@pytest.mark.parametrize(
    ("curve", "seconds", "best"),
    [(SMALL, 2.5, 0.9), (SMALL, 0.5, None), (LOSS, 9.0, 0.4)],
)
def test_the_best_within_some_time(curve, seconds, best):
    assert best_until(curve, seconds) == best


def test_equal_epochs_and_equal_seconds():
    (text,) = accuracy_sentences([run(curves=[SMALL, LARGE])], None)
    assert "within 3 epochs: batch 32 0.9500, batch 512 0.9200" in text
    assert "within 1.20 s of training: batch 32 0.7000, batch 512 0.9200" in text


def test_the_batch_size_that_is_there_first():
    text = accuracy_sentences([run(curves=[SMALL, LARGE])], 0.9)[1]
    assert text == (
        "val_accuracy 0.9 is reached first with batch 512: after 1.20 s of training, 3 epochs "
        "(batch 32: 2.00 s, 2 epochs)."
    )


def test_who_does_not_arrive_is_named():
    text = accuracy_sentences([run(curves=[SMALL, LARGE])], 0.94)[1]
    assert "first with batch 32" in text
    assert "batch 512: not in 3 epochs, best 0.9200" in text
    one = Curve(512, "val_accuracy", "maximize", [0.92], [0.4])
    text = accuracy_sentences([run(curves=[SMALL, one])], 0.94)
    assert text[0].startswith("Best val_accuracy within 1 epoch: ")
    assert "batch 512: not in 1 epoch, best 0.9200" in text[1]


def test_nobody_arrives():
    text = accuracy_sentences([run(curves=[SMALL, LARGE])], 0.99)[1]
    assert text == (
        "No batch size reaches val_accuracy 0.99; the best are batch 32 0.9500, batch 512 0.9200."
    )


def test_devices_are_named_where_there_are_several():
    gpu = run(measurement(32, 1.0), platform="gpu", curves=[LARGE])
    assert "batch 512 on gpu" in accuracy_sentences([run(curves=[SMALL]), gpu], 0.9)[1]


def test_without_curves_nothing_is_said():
    assert accuracy_sentences([run(curves=[Curve(32, "", "maximize", reason="no")])], 0.9) == []
    assert accuracy_sentences([run(curves=[SMALL])], None) == []
