"""A packed trial is that trial: packed histories against Keras' own ``fit(shuffle=False)``.

Tolerances (absolute, on every number of every epoch)
    1e-9   float64, where the traced step rounds nothing to float32. Measured: below 1e-12.
    1e-6   float64, where Keras itself keeps float32 inside (BatchNorm, LayerNorm, attention, ...).
    2e-2   bfloat16, whose numbers have 8 bits.
    float32: no further than Keras moves from itself when its input is scaled by 1 + 1e-6, and an
    absolute
           floor of 1e-6, a few units in the last place of a loss near 1.
A counting metric such as accuracy may differ by one sample where a rounding decides an argmax.
Do not loosen: find the cause.
"""

from __future__ import annotations

import numpy as np
import pytest

import zoo
from marks import slow_where
from numerics.alike import is_like_others
from numerics.packed import data_of, train_packed
from paceline.program.canonical import Unpackable

SEEDS = [11, 12, 13, 14]
PACKED = {name: case for name, case in zoo.CASES.items() if case.packable}
#: Kinds whose slots and plans are compared.
SIX_KINDS = [
    "dense_l1_l2",
    "conv_batchnorm",
    "lstm_recurrent_dropout",
    "bidirectional_gru_masking",
    "attention",
    "separable_conv",
]
COUNTING = (
    "accuracy",
    "precision",
    "recall",
    "auc",
    "f1",
    "iou",
    "top_k",
    "positives",
    "negatives",
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),
    # Keras' own steps overflow or divide by zero in places (AUC at the first batch).
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def slack(case: zoo.Case, name: str) -> float:
    """What a metric that counts samples may differ by: one of them."""
    if not any(part in name for part in COUNTING):
        return 0.0
    train, validation = data_of(case)
    data = validation if name.startswith("val_") else train
    return 1.0 / (data.n if data else 1) + 1e-6


def assert_equal(case: zoo.Case, packed, number: int, tolerance: float, *, count: bool) -> None:
    """Compares one packed trial with Keras' fit of the same values and seed."""
    weights = zoo.EpochWeights()
    alone, _ = zoo.reference(case, case.hparams[number], SEEDS[number], callbacks=[weights])
    ours = packed.history[number]
    assert set(ours) == set(alone)
    for name, values in alone.items():
        allowed = tolerance + (slack(case, name) if count else 0.0)
        np.testing.assert_allclose(ours[name], values, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("name", slow_where(PACKED, is_like_others))
def test_float64(name: str) -> None:
    """Every case, float64: decisive, because rounding cannot hide an error."""
    case = zoo.CASES[name]
    with zoo.float64():
        packed = train_packed(case, SEEDS[: len(case.hparams)])
        last = len(case.hparams) - 1
        tolerance = 2e-2 if case.bfloat16 else 1e-9 if case.float64_exact else 1e-6
        assert_equal(case, packed, last, tolerance, count=not case.float64_exact or case.bfloat16)
        if case.one_group:
            assert packed.counts["distinct"] == 1, "float constants split the group"


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_float32(name: str) -> None:
    """No further from Keras than Keras is from itself when its input moves in the last places."""
    case = zoo.CASES[name]
    packed = train_packed(case, SEEDS[: len(case.hparams)], as_users=True)
    moved = zoo.self_perturbation(
        case, case.hparams[0], SEEDS[0], nudges=(zoo.base.NUDGE, 2 - zoo.base.NUDGE)
    )
    alone, _ = zoo.reference(case, case.hparams[0], SEEDS[0])
    for metric, values in alone.items():
        floor = 2e-2 if case.bfloat16 else 1e-6
        allowed = max(floor, moved.history[metric]) + slack(case, metric)
        np.testing.assert_allclose(
            packed.history[0][metric], values, rtol=0, atol=allowed, err_msg=metric
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SIX_KINDS if n in PACKED])
@pytest.mark.parametrize(("slots", "plan"), [(1, "sequential"), (2, "vectorized"), (2, "looped")])
def test_number_of_slots_and_plan_do_not_matter(name: str, slots: int, plan: str) -> None:
    """Refilled slots (fewer slots than trials), one at a time or together: the same histories."""
    case = zoo.CASES[name]
    seeds = SEEDS[: len(case.hparams)]
    with zoo.float64():
        tolerance = 1e-9 if case.float64_exact else 1e-6
        one = train_packed(case, seeds, slots=slots, plan=plan)
        all_at_once = train_packed(case, seeds, slots=4, plan="vectorized")
        assert one.plans == {plan}
        for number in range(len(seeds)):
            for metric, values in all_at_once.history[number].items():
                np.testing.assert_allclose(
                    one.history[number][metric], values, rtol=0, atol=tolerance, err_msg=metric
                )
            for a, b in zip(one.weights[number][-1], all_at_once.weights[number][-1], strict=True):
                np.testing.assert_allclose(
                    a.astype("float64"), b.astype("float64"), rtol=0, atol=10 * tolerance
                )


@pytest.mark.parametrize("name", [n for n, case in zoo.CASES.items() if not case.packable])
def test_what_cannot_be_packed_says_why(name: str) -> None:
    with pytest.raises(Unpackable, match=r"compiled with|calls Python|side effects|own fit|random"):
        train_packed(zoo.CASES[name], SEEDS[: len(zoo.CASES[name].hparams)])
