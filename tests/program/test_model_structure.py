"""A job factory tells all that a step depends on: two models with one job factory have one step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import zoo
from marks import slow_where
from paceline.executor.model_builder import ModelBuilder
from paceline.program import keras_private, trace
from paceline.program.formulas.constant_formulas import ConstantPredictor
from paceline.program.formulas.model_structure import ModelStructure, structure_of
from paceline.program.step_template import same
from paceline.search_space import HyperParameters

#: Kinds whose numbers lie in layers, regularizers, losses, metrics, wrapped layers, nested
#: optimizers and schedules. (The oldest Keras has no MultiOptimizer.)
PREDICTED = [
    "dense_l1_l2",
    "shared_layers",
    "bidirectional_gru_masking",
    "categorical_focal",
    "mixed_bfloat16",
    "optimizer_LossScaleOptimizer",
    "optimizer_MultiOptimizer",
    "cosine_warm_up",
]


def drawn(case: zoo.Case, seed: int) -> dict[str, float]:
    """Values between the smallest and the largest of the case's own."""
    rng = np.random.default_rng(seed)
    columns = {name: [hparams[name] for hparams in case.hparams] for name in case.hparams[0]}
    return {name: float(rng.uniform(min(v), max(v))) for name, v in columns.items()}


def traced(model: keras.Model, batch: object) -> list[trace.Step]:
    state = trace.build_state(model, batch)
    return [trace.trace_train(model, state, batch), trace.trace_test(model, state, batch)]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize(
    "name",
    slow_where(
        [name for name in PREDICTED if name in zoo.CASES],
        lambda name: name == "bidirectional_gru_masking",  # three times as long as any other
    ),
)
def test_predicted_constants_equal_the_traced_ones_to_the_bit(name: str) -> None:
    case = zoo.CASES[name]
    build = ModelBuilder(case.build)
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((16, *a.shape[1:]), a.dtype), case.data())
    library = ConstantPredictor()
    n_predicted = 0
    for seed in range(8):
        model = build(HyperParameters(values=drawn(case, seed)), seed)
        job_factory = structure_of(model)
        assert job_factory is not None
        predicted = library.predict(job_factory.structure, job_factory.numbers)
        steps = traced(model, batch)
        group = tuple(step.canonical.fingerprint for step in steps)
        constants = [step.canonical.constants for step in steps]
        if predicted is None:
            library.add(job_factory.structure, group, job_factory.numbers, constants)
            continue
        n_predicted += 1
        assert predicted[0] == group
        for ours, theirs in zip(predicted[1], constants, strict=True):
            assert len(ours) == len(theirs)
            assert all(same(a.value, b.value) for a, b in zip(ours, theirs, strict=True))
    assert n_predicted > 0


def network(
    *, lr: float = 1e-3, rate: float = 0.3, l2: float = 0.01, epsilon: float = 1e-7
) -> keras.Model:
    model = keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(4, "relu", kernel_regularizer=keras.regularizers.L2(l2)),
            layers.Dropout(rate),
            layers.Dense(3, "softmax"),
        ]
    )
    optimizer = keras.optimizers.AdamW(lr, epsilon=epsilon)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def job_factory(change: Callable[[Any], object] | None = None, **numbers: float) -> ModelStructure:
    """Of the network, built as a trial is, changed after it was made."""

    def build(hp: HyperParameters) -> keras.Model:
        model = network(**numbers)
        if change is not None:
            change(model)
        return model

    found = structure_of(ModelBuilder(build)(HyperParameters(), seed=0))
    assert found is not None
    return found


def test_a_seed_and_a_learning_rate_leave_the_job_factory_as_it_is() -> None:
    job_factory = {
        structure_of(ModelBuilder(lambda hp, lr=lr: network(lr=lr))(HyperParameters(), seed))
        for seed, lr in [(0, 1e-3), (1, 1e-2), (2, 3e-2)]
    }
    assert len(job_factory) == 1


def test_numbers_are_apart_from_the_structure() -> None:
    one, other = job_factory(), job_factory(rate=0.4, l2=0.02, epsilon=1e-5)
    assert one.structure == other.structure
    assert sum(a != b for a, b in zip(one.numbers, other.numbers, strict=True)) == 3


CHANGES: dict[str, Callable[[Any], object]] = {
    "frozen layer": lambda m: setattr(m.layers[0], "trainable", False),
    "frozen variable": lambda m: setattr(m.layers[0].bias, "trainable", False),
    "constraint on a variable": lambda m: setattr(
        m.layers[0].kernel, "constraint", keras.constraints.NonNeg()
    ),
    "regularizer on a variable": lambda m: setattr(
        m.layers[2].kernel, "regularizer", keras.regularizers.L1(0.1)
    ),
    "regularizer taken away": lambda m: setattr(m.layers[0].kernel, "regularizer", None),
    "activity regularizer": lambda m: setattr(
        m.layers[0], "activity_regularizer", keras.regularizers.L2(0.1)
    ),
    "other activation": lambda m: setattr(m.layers[0], "activation", keras.activations.tanh),
    "decay excluded by name": lambda m: m.optimizer.exclude_from_weight_decay(var_names=["bias"]),
    "decay excluded by variable": lambda m: m.optimizer.exclude_from_weight_decay(
        var_list=[m.layers[0].bias]
    ),
    "decay excluded elsewhere": lambda m: m.optimizer.exclude_from_weight_decay(
        var_list=[m.layers[2].bias]
    ),
    "decay of None": lambda m: setattr(m.optimizer, "weight_decay", None),
    "rate of 0": lambda m: setattr(m.layers[1], "rate", 0),
    "other optimizer": lambda m: setattr(m, "optimizer", keras.optimizers.SGD()),
    "metrics added": lambda m: m.compile(
        m.optimizer, loss=m.loss, metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(2)]
    ),
    "loss weights": lambda m: m.compile(m.optimizer, loss=m.loss, loss_weights=[2]),
    "no jit": lambda m: m.compile(m.optimizer, loss=m.loss, jit_compile=False),
    "an array": lambda m: setattr(m.layers[1], "note", np.arange(3.0)),
    "another array": lambda m: setattr(m.layers[1], "note", np.arange(3.0) + 1),
}


def test_what_no_configuration_tells_changes_the_structure() -> None:
    structures = {name: job_factory(change).structure for name, change in CHANGES.items()}
    structures["unchanged"] = job_factory().structure
    assert len(set(structures.values())) == len(structures)


def test_settings_of_keras_and_jax_belong_to_the_structure() -> None:
    plain, epsilon = job_factory(), keras.config.epsilon()
    try:
        keras.config.set_epsilon(1e-3)
        assert job_factory().structure != plain.structure
    finally:
        keras.config.set_epsilon(epsilon)
    with jax.default_matmul_precision("float32"):
        assert job_factory().structure != plain.structure
    assert job_factory() == plain


def test_rematerialisation_and_policies_belong_to_the_structure() -> None:
    def scoped(scope: Any) -> ModelStructure | None:
        def build(hp: HyperParameters) -> keras.Model:
            with scope:
                return network()

        return structure_of(ModelBuilder(build)(HyperParameters(), seed=0))

    plain = job_factory()
    rematerialised = scoped(keras.RematScope("full"))
    assert rematerialised is not None
    assert rematerialised.structure != plain.structure
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        mixed = job_factory()
    finally:
        keras.config.set_dtype_policy(policy)
    assert mixed.structure != plain.structure


def test_what_was_adapted_belongs_to_the_structure() -> None:
    def normalised(scale: float) -> keras.Model:
        normalization = layers.Normalization()
        normalization.adapt(scale * np.arange(10.0).reshape(5, 2))
        model = keras.Sequential([layers.Input((2,)), normalization, layers.Dense(1)])
        model.compile("sgd", loss="mse")
        return model

    job_factory = [
        structure_of(
            ModelBuilder(lambda hp, scale=scale: normalised(scale))(HyperParameters(), seed=0)
        )
        for scale in (1.0, 2.0, 1.0)
    ]
    assert job_factory[0] == job_factory[2] != job_factory[1]


class _Mine(layers.Dense):
    """A user's layer."""


class _Step(keras.Sequential):
    """A user's model."""


class _MyRegularizer(keras.regularizers.Regularizer):
    """A user's regularizer."""


def _scaled(y: object, p: object) -> object:
    return keras.losses.mean_squared_error(y, p)


@functools.wraps(keras.losses.mean_squared_error)
def _in_disguise(y: object, p: object) -> object:
    return keras.losses.mean_squared_error(y, p)


_rate: Any = lambda: 0.1  # noqa: E731

USER_CODE: dict[str, Callable[[Any], object]] = {
    "layer": lambda m: m.add(_Mine(3)),
    "activation": lambda m: setattr(m.layers[0], "activation", lambda x: 2 * x),
    "activation of jax": lambda m: setattr(m.layers[0], "activation", jax.nn.silu),
    "function as loss": lambda m: m.compile("sgd", loss=_scaled),
    "function in disguise": lambda m: m.compile("sgd", loss=_in_disguise),
    "function as metric": lambda m: m.compile("sgd", loss="mse", metrics=[_scaled]),
    "learning rate": lambda m: m.compile(keras.optimizers.SGD(_rate), loss="mse"),
    "call": lambda m: setattr(m.layers[1], "call", lambda x, training=None: x),
    "train_step": lambda m: setattr(m, "train_step", lambda state, data: (state, data)),
    "object": lambda m: setattr(m, "notes", HyperParameters()),
    "regularizer": lambda m: setattr(m.layers[0].kernel, "regularizer", _MyRegularizer()),
}


@pytest.mark.parametrize("change", USER_CODE.values(), ids=USER_CODE)
def test_no_job_factory_where_user_code_is_in_reach(change: Callable[[Any], object]) -> None:
    def build(hp: HyperParameters) -> keras.Model:
        model = network()
        change(model)
        return model

    assert structure_of(ModelBuilder(build)(HyperParameters(), seed=0)) is None


@pytest.mark.parametrize(
    ("module", "stock"),
    [
        ("jax.numpy", True),
        ("numpy", True),
        ("jaxopt", False),
        ("jaxopt.solvers", False),
        ("numpyro.distributions", False),
        ("builtins_of_mine", False),
        ("keras.srcs", False),
    ],
)
def test_a_class_is_stock_by_the_whole_name_of_its_package(module: str, stock: bool) -> None:
    held = type("Held", (), {"__module__": module})

    def build(hp: HyperParameters) -> keras.Model:
        model = network()
        model.layers[1].note = held
        return model

    assert (structure_of(ModelBuilder(build)(HyperParameters(), seed=0)) is not None) == stock


def test_no_job_factory_for_a_users_model_class() -> None:
    def build(hp: HyperParameters) -> keras.Model:
        model = _Step([layers.Input((2,)), layers.Dense(1)])
        model.compile("sgd", loss="mse")
        return model

    assert structure_of(ModelBuilder(build)(HyperParameters(), seed=0)) is None


class _Ones(keras.initializers.Initializer):
    """A user's initializer: it decides the values of variables, which are state."""

    def __call__(self, shape: tuple[int, ...], dtype: object = None) -> object:
        return jax.numpy.ones(shape)


def test_the_users_initializer_does_no_harm() -> None:
    def build(hp: HyperParameters) -> keras.Model:
        ones: Any = _Ones()
        model = keras.Sequential([layers.Input((2,)), layers.Dense(1, kernel_initializer=ones)])
        model.compile("sgd", loss="mse")
        return model

    assert structure_of(ModelBuilder(build)(HyperParameters(), seed=0)) is not None


def test_a_deep_model_is_read_without_recursion() -> None:
    def build(hp: HyperParameters) -> keras.Model:
        inputs = x = layers.Input((2,))
        for _ in range(300):
            x = layers.Activation("relu")(x)
        model = keras.Model(inputs, x)
        model.compile("sgd", loss="mse")
        return model

    job_factory = [structure_of(ModelBuilder(build)(HyperParameters(), seed)) for seed in (0, 1)]
    assert job_factory[0] == job_factory[1] is not None


def test_a_model_that_is_built_as_fit_builds_it_has_a_structure() -> None:
    """On Keras 3.10 and 3.11, building gives the model a function of ours."""

    def build(hp: HyperParameters) -> keras.Model:
        model = keras.Sequential([layers.Dropout(hp.Fixed("rate", 0.1)), layers.Dense(1)])
        model.compile("sgd", loss="mse")
        return model

    model = ModelBuilder(build)(HyperParameters(), seed=0)
    keras_private.symbolic_build(model, (np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")))
    job_factory = structure_of(model)
    assert job_factory is not None
    assert 0.1 in job_factory.numbers
