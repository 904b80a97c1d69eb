"""A trial within the program of a family is the trial alone, for many kinds of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import zoo
from marks import slow_where
from paceline.program import jax_compat, trace
from paceline.program.padding.axes import NotPaddable
from paceline.program.padding.widths import FamilyStep, PaddedLayout, padded_layout_of
from paceline.program.trace import State, Step

B, CLASSES = 12, 5
#: Widths of the family's two traces, and of trials: none, one and both of them the largest.
LARGEST, SMALLER = (32, 48), (8, 20)
TRIALS = [(12, 24), (32, 20), (8, 48), (32, 48)]

Make = Callable[[int, int], Any]


def compiled(model: Any, optimizer: Any = None, loss: Any = None) -> Any:
    model.compile(
        keras.optimizers.Adam(1e-2) if optimizer is None else optimizer,
        "sparse_categorical_crossentropy" if loss is None else loss,
        metrics=["accuracy"],
    )
    return model


def stack(shape: tuple[int, ...], *parts: Any, optimizer: Any = None, dtype: Any = None) -> Any:
    inputs = keras.Input(shape, dtype=dtype)
    head = layers.Dense(CLASSES, activation="softmax")
    return compiled(keras.Sequential([inputs, *parts, head]), optimizer)


def _dense(u: int, v: int) -> Any:
    return stack((10,), layers.Dense(u, "relu"), layers.Dropout(0.3), layers.Dense(v, "tanh"))


def _norms(u: int, v: int) -> Any:
    parts = [layers.Dense(u, "gelu"), layers.BatchNormalization(), layers.Dense(v, "elu")]
    return stack((10,), *parts, layers.LayerNormalization())


def _convolutions(u: int, v: int) -> Any:
    first = layers.Conv2D(u, 3, padding="same", activation="relu")
    parts = [first, layers.BatchNormalization(), layers.MaxPooling2D(), layers.Conv2D(v, 2)]
    return stack((6, 6, 2), *parts, layers.SpatialDropout2D(0.3), layers.GlobalAveragePooling2D())


def _flatten(u: int, v: int) -> Any:
    parts = [layers.Conv2D(u, 3, activation="relu"), layers.AveragePooling2D(2), layers.Flatten()]
    return stack((6, 6, 2), *parts, layers.Dropout(0.2), layers.Dense(v, "relu"))


def _separable(u: int, v: int) -> Any:
    parts = [layers.SeparableConv2D(u, 3), layers.GroupNormalization(4), layers.Conv2D(v, 1)]
    return stack((6, 6, 2), *parts, layers.GlobalMaxPooling2D())


def _lstm(u: int, v: int) -> Any:
    first = layers.LSTM(u, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)
    return stack((5, 3), first, layers.LSTM(v))


def _gru(u: int, v: int) -> Any:
    embedding = layers.Embedding(9, u, mask_zero=True)
    return stack((5,), embedding, layers.Bidirectional(layers.GRU(v)), dtype="int32")


def _attention(u: int, v: int, use_bias: bool = True) -> Any:
    x = keras.Input((4, 8))
    y = x + layers.MultiHeadAttention(2, u, dropout=0.1, use_bias=use_bias)(x, x)
    y = layers.LayerNormalization()(layers.Dense(8)(layers.Dense(v, "relu")(y)))
    y = layers.Dense(CLASSES, "softmax")(layers.GlobalAveragePooling1D()(y))
    return compiled(keras.Model(x, y))


def _two_inputs_meet(u: int, v: int) -> Any:
    x = keras.Input((10,))
    parts = [layers.Dense(u, "relu")(x), layers.Dense(v, "sigmoid")(x)]
    y = layers.Dense(CLASSES, "softmax")(layers.Concatenate()(parts))
    return compiled(keras.Model(x, y))


def _clipped(u: int, v: int) -> Any:
    optimizer = keras.optimizers.AdamW(1e-2, global_clipnorm=0.1, use_ema=True)
    parts = [layers.Dense(u, "elu", kernel_regularizer="l2"), layers.Dense(v, "softmax")]
    return stack((10,), *parts, optimizer=optimizer)


def _weights_by_gate(u: int, v: int) -> Any:
    x = keras.Input((10,))
    y = layers.Dense(u)(x) * layers.Dense(u, "sigmoid")(x)
    y = layers.PReLU()(layers.Dense(v, use_bias=False)(layers.UnitNormalization()(y)))
    return compiled(keras.Model(x, layers.Dense(CLASSES, "softmax")(y)))


def _with(optimizer: str) -> Make:
    def make(u: int, v: int) -> Any:
        made = getattr(keras.optimizers, optimizer)(1e-2)
        return stack((10,), layers.Dense(u, "relu"), layers.Dense(v, "relu"), optimizer=made)

    return make


OPTIMIZERS = "SGD Adam AdamW Nadam Adamax RMSprop Adagrad Lion Ftrl Lamb".split()
KINDS: dict[str, Make] = {
    "dense": _dense,
    "norms": _norms,
    "convolutions": _convolutions,
    "flatten": _flatten,
    "separable": _separable,
    "lstm": _lstm,
    "gru": _gru,
    "attention": _attention,
    "concatenated": _two_inputs_meet,
    "clipped": _clipped,
    "gate": _weights_by_gate,
    **{name: _with(name) for name in OPTIMIZERS},
}
QUICK = ["dense"]
#: Keras computes parts of these in float32, whatever floatx is.
ROUNDS = {"norms", "convolutions", "separable", "attention"}


def shapes_of(model: Any, size: int) -> Any:
    """Shapes and dtypes of a batch of so many examples."""
    (x,) = model.inputs
    return (
        jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype),
        jax.ShapeDtypeStruct((size,), "int32"),
    )


def traced(model: Any) -> tuple[State, Step]:
    shapes = shapes_of(model, B)
    state = trace.build_state(model, shapes)
    return state, trace.trace_train(model, state, shapes)


def batches(model: Any, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    (x,) = model.inputs
    random = np.random.default_rng(0)
    found = []
    for _ in range(n):
        shape = (B, *x.shape[1:])
        data = random.integers(0, 9, shape) if "int" in x.dtype else random.normal(size=shape)
        found.append((data.astype(x.dtype), random.integers(0, CLASSES, B).astype("int32")))
    return found


def train(closed: Any, state: State, data: Any, *first: Any) -> tuple[np.ndarray, State]:
    """The logs of each step and the last state."""
    parts, logs = state.lists(), []
    flat = [leaf for part in parts for leaf in part]
    # At level 0, as tests are compiled, XLA's older loops round float64's tanh to 1e-8, by extents.
    run = (
        jax.jit(jax_compat.jaxpr_as_fun(closed))
        .lower(*first, *flat, *data[0])
        .compile({"xla_backend_optimization_level": "1"})
    )
    for batch in data:
        log, *flat = run(*first, *flat, *batch)
        logs.append(np.asarray(log))
    rest = iter(flat)
    return np.array(logs), State(*([np.asarray(next(rest)) for _ in part] for part in parts))


def riding(role: FamilyStep, family: State, state: State, step: Step) -> tuple[Any, PaddedLayout]:
    padded, _, axes = role.admit(step)
    n = sum(len(part) for part in state.lists())
    return padded, padded_layout_of(state, family, axes[:n])


@pytest.mark.parametrize("name", slow_where(KINDS, lambda name: name not in QUICK))
def test_a_padded_trial_is_the_lone_trial(name: str) -> None:
    make = KINDS[name]
    with zoo.float64():
        keras.utils.set_random_seed(1)
        (family, w), (_, n) = traced(make(*LARGEST)), traced(make(*SMALLER))
        role = FamilyStep((w, n), None)
        prints = set()
        for widths in TRIALS:
            keras.utils.set_random_seed(2)
            model = make(*widths)
            state, step = traced(model)
            padded, embedding = riding(role, family, state, step)
            prints.add(padded.canonical.fingerprint)
            data = batches(model, 5)
            logs, last = train(step.closed, state, data)
            first = [constant.value for constant in padded.canonical.constants]
            ours, mine = train(padded.closed, embedding.embed(state), data, *first)
            # The same numbers, summed with zeros between them; float32 rounds at 1e-7, and Adam
            # divides small gradients by their size.
            tolerance = 1e-4 if name in ROUNDS else 1e-9
            np.testing.assert_allclose(ours, logs, rtol=tolerance, atol=tolerance)
            for part, (a, b) in enumerate(zip(mine.lists(), last.lists(), strict=True)):
                for x, y in zip(embedding.cut(part, a), b, strict=True):
                    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
                for leaf, x in enumerate(a):
                    kept = embedding.embed_leaf(part, leaf, embedding.cut_leaf(part, leaf, x))
                    assert np.array_equal(kept, x), "the padding of a variable is zero"
        assert len(prints) == 1, "all trials ride in one program"


@pytest.mark.parametrize("which", [0, 1])
def test_the_family_s_own_models_need_no_walk_of_their_own(which: int) -> None:
    traces = [traced(_flatten(*widths))[1] for widths in (LARGEST, SMALLER)]
    role = FamilyStep((traces[0], traces[1]), (traces[0], traces[1]))
    for ours, theirs in zip(role.example(which)[:2], role.admit(traces[which])[:2], strict=True):
        assert ours is not None and theirs is not None
        assert ours.closed is theirs.closed and ours.n_widths == theirs.n_widths > 0
        values = [[c.value.tobytes() for c in step.canonical.constants] for step in (ours, theirs)]
        assert values[0] == values[1]
    sizes = [
        [[axis.extent({s: s.sizes[at] for s in axis.symbols()}) for axis in each] for each in axes]
        for axes, at in ((role.example(which)[2], which), (role.admit(traces[which])[2], 2))
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.slow
def test_nan_of_one_trial_stays_out_of_its_neighbours() -> None:
    """Weights of a neighbour do not meet: a slot that has NaN changes no bit of another one."""
    keras.utils.set_random_seed(1)
    (family, w), (_, n) = traced(_dense(*LARGEST)), traced(_dense(*SMALLER))
    role = FamilyStep((w, n), None)
    slots = []
    for widths in TRIALS[:2]:
        state, step = traced(_dense(*widths))
        padded, embedding = riding(role, family, state, step)
        slots.append((padded, embedding.embed(state)))
    program = slots[0][0].closed
    run = jax.jit(jax.vmap(jax_compat.jaxpr_as_fun(program), in_axes=0))
    (batch,) = batches(_dense(*LARGEST), 1)

    def both(spoilt: bool) -> list[np.ndarray]:
        rows = []
        for i, (padded, state) in enumerate(slots):
            leaves = [np.asarray(leaf) for part in state.lists() for leaf in part]
            if i == 0 and spoilt:
                leaves[0] = np.full_like(leaves[0], np.nan)
            rows.append([*(c.value for c in padded.canonical.constants), *leaves, *batch])
        return [
            np.asarray(a)[1] for a in run(*(np.stack(each) for each in zip(*rows, strict=True)))
        ]

    for a, b in zip(both(spoilt=False), both(spoilt=True), strict=True):
        assert np.array_equal(a, b)


@pytest.fixture(scope="module")
def role() -> FamilyStep:
    """The step of a family of dense layers."""
    (_, w), (_, n) = traced(_dense(*LARGEST)), traced(_dense(*SMALLER))
    return FamilyStep((w, n), None)


@pytest.mark.parametrize(
    ("why", "make"),
    [
        # The step at width 1 squeezes axes away.
        ("other numbers of equations", lambda u, v: _dense(1, v)),
        # Another activation is another operation.
        ("other numbers of constants", lambda u, v: stack((10,), layers.Dense(u, "tanh"))),
        # Wider than the family.
        ("has extent 64 where the family has", lambda u, v: _dense(64, v)),
    ],
    ids=["width 1", "activation", "too wide"],
)
def test_what_is_not_proved_does_not_ride(why: str, make: Make, role: FamilyStep) -> None:
    with pytest.raises(NotPaddable, match=why):
        role.admit(traced(make(12, 24))[1])


def test_what_replaces_a_variable_is_what_later_equations_read() -> None:
    """Adam's new moments are filled where they are made, not beside the update that reads them.

    XLA would compute them twice otherwise, and copy the old ones in each step.
    """
    (_, w), (_, n) = traced(_dense(*LARGEST)), traced(_dense(*SMALLER))
    closed = FamilyStep((w, n), None).admit(n)[0].closed
    readers: dict[Any, list[Any]] = {}
    makers: dict[Any, Any] = {}
    for eqn in closed.jaxpr.eqns:
        for atom in eqn.invars:
            if not jax_compat.is_literal(atom):
                readers.setdefault(atom, []).append(eqn)
        makers |= dict.fromkeys(eqn.outvars, eqn)
    filled = 0
    for out in closed.jaxpr.outvars[1:]:
        fill = None if jax_compat.is_literal(out) else makers.get(out)
        if fill is None or fill.primitive.name not in ("select_n", "jit", "pjit"):
            continue
        atoms = [atom for atom in fill.invars if not jax_compat.is_literal(atom)]
        made = [atom for atom in atoms if atom in makers and atom.aval.shape == out.aval.shape]
        filled += len(made)
        for atom in made:
            assert readers[atom] == [fill], atom
    assert filled >= 3 * 4, "a variable and its two moments, for two kernels and two biases"
