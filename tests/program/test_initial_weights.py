"""Initial weights that are cut from longer draws are the ones that they would have been."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

from paceline.program import initial_weights
from paceline.program.initial_weights import NAMES, shared_initializer_programs


@pytest.fixture
def lengths(monkeypatch):
    """Lengths that were drawn inside."""
    found = []
    length = initial_weights._length

    def noted(n):
        found.append(length(n))
        return found[-1]

    monkeypatch.setattr(initial_weights, "_length", noted)
    return found


#: Odd sizes, where vectors of numbers leave a rest; sizes around one that is drawn.
SHAPES = [(1,), (7, 3), (96, 10), (3, 3, 2, 5), (4096,), (4097,), (41, 100)]


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_the_same_to_the_bit(shape, lengths):
    key = jax.random.PRNGKey(17)
    calls = {
        "uniform": lambda: jax.random.uniform(key, shape, "float32", -0.37, 0.41),
        "normal": lambda: jax.random.normal(jax.random.key(3), shape=shape, dtype="float32"),
        "truncated_normal": lambda: jax.random.truncated_normal(key, -2.0, 2.0, shape, "float32"),
    }
    alone = {name: call() for name, call in calls.items()}
    with shared_initializer_programs():
        ours = {name: call() for name, call in calls.items()}
    assert len(lengths) == len(NAMES)
    for name in NAMES:
        assert (ours[name].shape, ours[name].dtype) == (shape, alone[name].dtype)
        np.testing.assert_array_equal(ours[name], alone[name], err_msg=name)


@pytest.fixture
def accelerator(monkeypatch):
    """A device that is no CPU, as far as initial weights ask; no draw has been compared on it."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(initial_weights, "_agrees", {})


def uniforms():
    key = jax.random.PRNGKey(17)
    return [jax.random.uniform(key, shape, "float32", -0.37, 0.41) for shape in SHAPES]


def test_an_accelerator_shares_programs_once_a_draw_was_compared(accelerator, lengths):
    alone = uniforms()
    with shared_initializer_programs():
        for ours, theirs in zip(uniforms(), alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert initial_weights._agrees == {"uniform": True}
    assert len(lengths) == len(SHAPES)


def test_an_accelerator_whose_numbers_depend_on_the_shape_draws_as_jax_does(
    accelerator, lengths, monkeypatch
):
    plain = jax.random.uniform

    def uniform(key, shape=(), dtype=float, minval=0.0, maxval=1.0):
        return plain(key, shape, dtype, minval, maxval) + len(shape)

    monkeypatch.setattr(jax.random, "uniform", uniform)
    alone = uniforms()
    with shared_initializer_programs():
        for ours, theirs in zip(uniforms(), alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert initial_weights._agrees == {"uniform": False}


def test_models_of_several_widths_share_programs(lengths):
    def weights():
        found = []
        for units in (5, 6, 7):
            keras.utils.set_random_seed(units)
            model = keras.Sequential([keras.Input((4, 2)), keras.layers.LSTM(units)])
            found += model.get_weights()
        return found

    alone = weights()
    with shared_initializer_programs():
        for ours, theirs in zip(weights(), alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert lengths == [4096] * 6  # kernels, and what orthogonal kernels are made of


def test_what_is_traced_or_counted_otherwise_is_left_to_jax(lengths):
    key = jax.random.PRNGKey(0)
    others = (
        {"dtype": "bfloat16"},
        {"dtype": "float8_e4m3fn"},
        {"minval": np.zeros(3, "float32")},
        {"shape": (0,)},
        {"key": jax.random.key(0, impl="rbg")},
    )
    with shared_initializer_programs():
        traced = jax.make_jaxpr(lambda: jax.random.uniform(key, (3,)))()
        for other in others:
            jax.random.uniform(**{"key": key, "shape": (3,), "dtype": "float32", **other})
    assert "4096" not in str(traced)
    assert lengths == []


def test_the_names_are_jax_own_again_where_the_last_search_ends():
    before = [getattr(jax.random, name) for name in NAMES]
    with shared_initializer_programs():
        with shared_initializer_programs():
            pass
        assert all(getattr(jax.random, n) is not b for n, b in zip(NAMES, before, strict=True))
    assert [getattr(jax.random, name) for name in NAMES] == before


@pytest.mark.parametrize(
    ("n", "length"),
    [(1, 4096), (4097, 32768), (262144, 262144), (262145, 524288), (600_000, 1 << 20)],
)
def test_lengths(n, length):
    assert initial_weights._length(n) == length


@pytest.mark.parametrize("shape", [(), (3,), (784, 37), [5, 2]])
def test_zeros_and_ones_are_the_same_and_compile_nothing(shape, caplog):
    def fill():
        caplog.clear()
        arrays = [
            jax.numpy.zeros(shape, dtype="float32"),
            jax.numpy.ones(shape, "float32"),
            jax.numpy.full(shape, 0.25, dtype="float32"),
            jax.numpy.full(shape, fill_value=np.float32(-0.0), dtype="float32"),
        ]
        return arrays, [text for text in caplog.messages if "XLA compilation" in text]

    with jax.log_compiles():
        jax.clear_caches()
        with shared_initializer_programs():
            ours, compiled = fill()
        assert not compiled
        alone, compiled = fill()
        assert compiled, "the log tells of programs"
    for a, b in zip(ours, alone, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (0.1, "float32"),
        ([17, 0], "uint32"),
        (3, "int32"),
        ((0.5, float("nan")), "float32"),
        (0, "float32"),
        ((1 << 24) - 1, "float32"),
        (np.float32(0.5), "float32"),
        (np.int32(-3), "int32"),
    ],
)
def test_numbers_of_python_are_put_on_the_device_by_no_program(given, dtype, caplog):
    alone = jax.numpy.asarray(given, dtype=dtype)
    with jax.log_compiles():
        jax.clear_caches()
        with shared_initializer_programs():
            caplog.clear()
            ours = jax.numpy.asarray(given, dtype=dtype)
        assert not caplog.messages
    assert (ours.shape, ours.dtype, ours.weak_type) == (alone.shape, alone.dtype, alone.weak_type)
    assert (ours.committed, ours.devices()) == (alone.committed, alone.devices())
    assert np.asarray(ours).tobytes() == np.asarray(alone).tobytes()


def test_other_numbers_are_converted_by_jax():
    given = [
        (True, "float32"),
        ((1 << 24) + 1, "float32"),
        (np.int32(3), "float32"),
        (2.5, "int32"),
        (-1, "int32"),
        (0.5, None),
        (np.float64(0.5), "float32"),
        ([[0.5], [1.0]], "float32"),
        ([1, True], "int32"),
    ]
    alone = [jax.numpy.asarray(number, dtype=dtype) for number, dtype in given]
    with shared_initializer_programs():
        ours = [jax.numpy.asarray(number, dtype=dtype) for number, dtype in given]
        # NumPy 1 warns, which is an error here.
        with pytest.raises((OverflowError, DeprecationWarning), match="uint32"):
            jax.numpy.asarray(-1, dtype="uint32")
        assert jax.jit(lambda: jax.numpy.asarray(0.5, dtype="float32"))() == 0.5
    for (number, dtype), a, b in zip(given, ours, alone, strict=True):
        assert (a.dtype, a.weak_type, a.tolist()) == (b.dtype, b.weak_type, b.tolist()), (
            number,
            dtype,
        )


def test_what_is_no_plain_array_of_numbers_is_left_to_jax():
    device = jax.devices()[1]
    with shared_initializer_programs():
        assert jax.numpy.zeros(3, "int32").dtype == "int32"
        assert jax.numpy.zeros((2, 2), "float32", device=device).devices() == {device}
        assert jax.numpy.full((2,), np.arange(2), dtype="float32").tolist() == [0.0, 1.0]
        assert jax.jit(lambda: jax.numpy.zeros((2,), "float32"))().shape == (2,)
    assert jax.numpy.zeros.__module__ != "paceline.program.initial_weights"
