"""Eight CPU devices: slots spread over them, batches split over them, and the same histories."""

from __future__ import annotations

import re

import jax
import keras
import numpy as np
import pytest

import paceline
from paceline.errors import BuildError
from paceline.executor.training import planner
from paceline.pack.mesh import MeshLayout, check_mesh, lay_out, local_devices
from paceline.pack.pack import Pack

N, BATCH = 96, 16
RNG = np.random.default_rng(0)
X = RNG.random((N, 8)).astype("float32")
Y = (X.sum(axis=1) * 3).astype(int) % 3
COLLECTIVE = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)")


def build(hp):
    """Dropout, batch statistics and momentum: whatever a split batch could get wrong."""
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1, sampling="log"), momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class Searched:
    """A search on a mesh, and what it compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mesh, n_trials, build=build, **arguments):
        programs, self.notes = [], []

        make = planner.Planner._make

        def kept(*args, **options):
            programs.append(make(*args, **options))
            return programs[-1]

        with monkeypatch.context() as patch:
            patch.setattr(planner.Planner, "_make", kept)
            tuner = paceline.Tuner(
                build,
                objective="val_loss",
                study=f"on-{'auto' if mesh == 'auto' else 'mesh'}",
                sampler="random",
                mesh=mesh,
                on_note=self.notes.append,
                **{
                    name: arguments.pop(name)
                    for name in ("parallel_trials", "plan")
                    if name in arguments
                },
            )
            tuner.search(
                X,
                Y,
                validation_data=(X[:40], Y[:40]),
                n_trials=n_trials,
                **{"epochs": 2, "batch_size": BATCH, **arguments},
            )
        self.histories = [tuner.history(i) for i in range(n_trials)]
        self.results, self.tuner = tuner.results(), tuner
        self.layouts = [program.layout for program in programs]
        self.texts = [
            executable.call.as_text()
            for program in programs
            for role in program.roles()
            for executable in role
        ]

    def equal(self, other: Searched, rtol: float) -> None:
        for ours, theirs in zip(self.histories, other.histories, strict=True):
            assert ours.keys() == theirs.keys()
            for name, values in ours.items():
                tolerance = 1.5 / 40 if "accuracy" in name else 0
                np.testing.assert_allclose(values, theirs[name], rtol, tolerance, err_msg=name)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch):
    return lambda *args, **options: Searched(monkeypatch, *args, **options)


@pytest.mark.slow
def test_slots_spread_over_devices_exchange_nothing(searched) -> None:
    spread, alone = searched(8, 16), searched("auto", 16)
    assert [(each.trial, each.data) for each in spread.layouts] == [(8, 1)]
    assert alone.layouts == [None]
    assert spread.texts
    assert not any(COLLECTIVE.search(text) for text in spread.texts)
    spread.equal(alone, rtol=2e-5)  # sums run in another order where the slots are fewer
    assert not spread.notes


@pytest.mark.slow
def test_a_batch_is_split_where_trials_are_fewer_than_devices(searched) -> None:
    split, alone = searched(8, 2), searched("auto", 2)
    assert [(each.trial, each.data) for each in split.layouts] == [(2, 4)]
    assert any("all-reduce" in text for text in split.texts), "gradients must be summed"
    split.equal(alone, rtol=2e-5)


@pytest.mark.slow
def test_one_trial_takes_all_devices(searched) -> None:
    split, alone = searched((1, 8), 1), searched("auto", 1)
    assert [(each.trial, each.data) for each in split.layouts] == [(1, 8)]
    split.equal(alone, rtol=2e-5)


@pytest.mark.slow
def test_a_batch_that_does_not_divide_takes_fewer_devices_and_says_so(searched) -> None:
    split, alone = searched(8, 2, batch_size=18), searched("auto", 2, batch_size=18)
    assert [(each.trial, each.data) for each in split.layouts] == [(2, 3)]
    assert any("6 of 8 devices are used" in note for note in split.notes)
    split.equal(alone, rtol=2e-5)


def test_slots_are_refilled_and_models_come_back(searched) -> None:
    spread = searched(4, 12, epochs=lambda hp: 1 + int(hp.Float("dropout", 0.1, 0.5) > 0.3))
    assert (spread.results["state"] == "complete").all()
    model, best = spread.tuner.best_model(), spread.tuner.best_trial
    evaluated = model.evaluate(X[:40], Y[:40], batch_size=BATCH, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(best.value, rel=1e-5)


@pytest.mark.slow
def test_convolutions_exchange_nothing(searched) -> None:
    def images(hp):
        model = keras.Sequential(
            [
                keras.layers.Input((8,)),
                keras.layers.Reshape((4, 2, 1)),
                keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D((2, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        rate = hp.Float("lr", 1e-3, 1e-1)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        return model

    # On CPU a convolution's own plan is sequential: the stacked one is what accelerators take.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner.Planner, "_rule", lambda self, group: "vectorized")
        spread, alone = searched(8, 8, build=images), searched("auto", 8, build=images)
    assert not any(COLLECTIVE.search(text) for text in spread.texts)
    spread.equal(alone, rtol=1e-4)


@pytest.mark.parametrize(
    ("n", "given", "n_trials", "batch_size", "expected"),
    [
        (8, None, 100, 32, (8, 1)),
        (8, None, 8, 7, (8, 1)),
        (8, None, 3, 32, (2, 4)),
        (8, None, 1, 1024, (1, 8)),
        (8, None, 1, 12, (1, 6)),
        (6, None, 4, 32, (3, 2)),
        (8, (4, 2), 1, 32, (4, 2)),
        (1, None, 9, 32, None),
    ],
)
def test_layouts(n, given, n_trials, batch_size, expected) -> None:
    layout, note = lay_out(jax.devices()[:n], given, n_trials, batch_size)
    assert (layout and (layout.trial, layout.data)) == expected
    assert (note is not None) == (expected == (1, 6))


def test_a_batch_that_cannot_be_split_over_any() -> None:
    layout, note = lay_out(jax.devices(), None, 1, 17)
    assert layout is None
    assert note is not None
    assert note.startswith("only 1 of 8 devices are used")


@pytest.mark.parametrize("mesh", [0, (0, 2), "2x", "x", (1, 2, 3), 1.5, True, (2, "a"), []])
def test_no_mesh_is_an_error(mesh) -> None:
    with pytest.raises(paceline.UsageError, match="mesh must be a number of devices"):
        check_mesh(mesh)


def test_what_is_a_mesh() -> None:
    assert check_mesh("auto") is None
    assert check_mesh("8") == check_mesh(8) == (8, None)
    assert check_mesh("4x2") == check_mesh((4, 2)) == (4, 2)


def test_a_mesh_that_does_not_fit_the_devices() -> None:
    with pytest.raises(
        paceline.UsageError, match=r"mesh: you asked for 16 devices.*finds 8 cpu devices"
    ):
        local_devices((4, 4))
    with pytest.raises(paceline.UsageError, match=r"batch of 32 cannot be split over 3"):
        lay_out(jax.devices()[:6], (2, 3), 4, 32)
    for options, why in (
        ({"mesh": 8, "plan": "sequential"}, "8 x 1 devices, but the plan sequential"),
        ({"mesh": (2, 2), "plan": "looped"}, "cannot split batches. Use mesh=2"),
        ({"mesh": 4, "executor": "fit"}, "Keras' fit uses only one"),
    ):
        with pytest.raises(paceline.UsageError, match=why):
            paceline.Tuner(build, **options)
    paceline.Tuner(build, mesh=1, plan="sequential")


@pytest.mark.slow
def test_a_batch_that_cannot_be_split_as_asked(searched, fresh_folder) -> None:
    with pytest.raises(paceline.UsageError, match="batch of 17 cannot be split over 2"):
        searched((1, 2), 2, batch_size=17)
    assert not list(fresh_folder.iterdir()), "nothing was written"
    some = searched((1, 2), 6, batch_size=lambda hp: hp.Choice("batch_size", [17, 16]))
    states = some.results.groupby("batch_size")["state"].unique()
    assert states[16].tolist() == ["complete"]
    assert states[17].tolist() == ["failed"]


@pytest.mark.slow
def test_one_slot_on_two_devices_is_split(searched) -> None:
    one = searched((1, 2), 2, parallel_trials=1)
    assert [(each.trial, each.data) for each in one.layouts] == [(1, 2)]
    one.equal(searched("auto", 2), rtol=2e-5)


@pytest.mark.slow
def test_a_loop_over_slots_shares_no_batch(searched) -> None:
    mapped = searched(8, 2, plan="looped")
    assert [(each.trial, each.data) for each in mapped.layouts] == [(2, 1)]
    assert not any(COLLECTIVE.search(text) for text in mapped.texts)
    assert any("2 of 8 devices" in note for note in mapped.notes)
    mapped.equal(searched("auto", 2), rtol=2e-5)


@pytest.mark.slow
def test_out_of_memory_on_a_mesh_that_cannot_shrink_ends(searched, monkeypatch) -> None:
    def full(self):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(Pack, "run_epoch", full)
    with pytest.raises(BuildError, match="every trial of this search failed.*Out of memory"):
        searched((2, 1), 2, parallel_trials=2)
    failed = paceline.Tuner(build, objective="val_loss", study="on-mesh")
    assert failed.results()["state"].tolist() == ["failed"] * 2


def test_a_row_is_read_from_the_device_that_has_it() -> None:
    from paceline.pack.slot_rows import _put_everywhere

    layout = MeshLayout(tuple(jax.devices()), 4, 2)
    many = jax.device_put(np.arange(24.0).reshape(8, 3), layout.over_slots)
    rows = [layout.slot_of(many, slot) for slot in range(8)]
    assert [row[0] for row in rows] == [0, 3, 6, 9, 12, 15, 18, 21]
    text = _put_everywhere.lower([[many]], [[np.zeros(3)]], np.int32(5)).compile().as_text()
    assert not COLLECTIVE.search(text)
    ((new,),) = _put_everywhere([[many]], [[np.full(3, 7.0)]], np.int32(5))
    rows = [layout.slot_of(new, slot) for slot in range(8)]
    assert [row[0] for row in rows] == [0, 3, 6, 9, 12, 7, 18, 21]
