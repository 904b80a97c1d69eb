"""Numbers as people read them, and strict JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97222, "0.9722"),
        (1.0, "1.0000"),
        (0.0, "0.0000"),
        (-0.5, "-0.5000"),
        (3.14159e-6, "3.142e-06"),
        (123456.789, "1.235e+05"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "-"),
    ],
)
def test_a_metric_shows_what_matters(value, text):
    assert formats.metric(value) == text


def test_hparams_show_six_digits_and_keep_other_values():
    values = {"lr": 0.004123456789, "units": 64, "activation": "relu", "bias": True}
    assert formats.hparams(values) == "lr 0.00412346, units 64, activation relu, bias True"
    assert formats.hparams({}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (12.4, "0:12"), (59.6, "1:00"), (185, "3:05"), (7509, "2:05:09"), (-3, "0:00")],
)
def test_a_duration_is_a_clock(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_an_unknown_time_is_a_dash(nothing):
    assert formats.duration(nothing) == formats.seconds(nothing) == formats.rate(nothing) == "-"


def test_measured_seconds_have_decimals_up_to_a_minute():
    assert [formats.seconds(s) for s in (0.378, 4.21, 75)] == ["0.38 s", "4.2 s", "1:15"]


def test_a_rate_has_three_digits():
    assert [formats.rate(r) for r in (0.1234, 12.34, 412.3, 13200.0)] == [
        "0.123",
        "12.3",
        "412",
        "13,200",
    ]


def test_json_is_strict():
    value = {
        "nan": math.nan,
        "inf": -math.inf,
        "nested": [{"a": (1, math.nan)}],
        "numpy": [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("nan"), np.str_("s")],
        "path": Path("a"),
        3: None,
    }
    text = formats.to_json(value)
    assert "\n" not in text
    assert json.loads(text, parse_constant=pytest.fail) == {
        "nan": None,
        "inf": None,
        "nested": [{"a": [1, None]}],
        "numpy": [0.5, 3, True, None, "s"],
        "path": "a",
        "3": None,
    }


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_value_comes_back(value):
    back = json.loads(formats.to_json(value), parse_constant=pytest.fail)
    assert back == formats.strict(value)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.5, 0.97222, None], ["0.5000", "0.9722", "-"]),
        ([0.5, 0.00042, 0.0], ["0.5000000", "0.0004200", "0.0000000"]),
        ([0.5, 3e-9], ["5.000e-01", "3.000e-09"]),
        ([123456.7, 1.0, math.nan], ["1.235e+05", "1.000e+00", "nan"]),
        ([0.0, 0.0], ["0.0000", "0.0000"]),
        ([], []),
    ],
)
def test_metrics_of_a_column_have_one_precision(values, texts):
    assert formats.metrics(values) == texts


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.2, 0.13763, 0.00001], ["0.20000", "0.13763", "0.00001"]),
        ([1e-7, 0.5], ["0.0000001", "0.5000000"]),
        ([1.23456e-7, 1.0], ["1.23456e-07", "1.00000e+00"]),
        ([0.00123456, 0.259437], ["0.00123456", "0.25943700"]),
        ([0.000123456, 0.259437], ["0.00012346", "0.25943700"]),
        ([0.5, 0.25], ["0.50", "0.25"]),
        ([8, 16], ["8", "16"]),
        (["relu", True], ["relu", "True"]),
        ([None, 0.5, 0.25], ["None", "0.50", "0.25"]),
        ([math.inf, 0.5], ["inf", "0.5"]),
        ([100.0, 20.0], ["100", "20"]),
    ],
)
def test_floats_of_a_column_have_one_precision(values, texts):
    assert formats.hparam_column(values) == texts


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=8))
def test_a_column_says_what_each_value_says_alone(values):
    texts = formats.hparam_column(values)
    alone = [float(formats.hparam(value)) for value in values]
    assert [float(text) for text in texts] == pytest.approx(alone, rel=1e-4)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_what_differs_is_printed_apart(first, second):
    texts = formats.apart(first, second)
    assert (texts[0] == texts[1]) == (first == second)


def test_seconds_of_a_column_have_one_precision():
    assert formats.seconds_column([0.385, 4.2]) == ["0.39 s", "4.20 s"]
    assert formats.seconds_column([4.21, None]) == ["4.2 s", "-"]
    assert formats.seconds_column([75.0, 0.2]) == ["75.0 s", "0.2 s"]
    assert formats.seconds_column([4000.0, 4.2]) == ["1:06:40", "0:04"]
    assert formats.seconds_column([]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"),
        (0.0001009, "0.0001"),
        (7.04e-7, "7e-07"),
        (0.0625, "0.0625"),
        (2e6, "2e+06"),
    ],
)
def test_a_difference_that_is_none_is_the_only_zero(value, text):
    assert formats.difference(value) == text
