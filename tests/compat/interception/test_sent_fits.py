"""Fits of a session that is not on JAX; NumPy's backend stands for all others.

Keras cannot train on NumPy, so whatever is trained here was trained in the other process.
``tests/sessions`` has sessions on TensorFlow and PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from session_scripts import run_script

FITS = """
import glob, signal


class Norms(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.norms = []

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
        kill = os.environ.get("KILL", "")
        if epoch == 1 and os.path.exists(kill):
            os.remove(kill)
            for path in glob.glob("/proc/[0-9]*/status"):
                if f"PPid:\\t{os.getpid()}\\n" in open(path).read():
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return X[15 * number : 15 * number + 15], Y[15 * number : 15 * number + 15]


def train(i):
    drawn = float(np.random.random())
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    weights = np.random.default_rng(i)
    for variable in model.trainable_variables:
        variable.assign(weights.normal(size=variable.shape))
    model.compile(keras.optimizers.SGD(0.1 * (i + 1)), "sparse_categorical_crossentropy")
    norms = Norms()
    callbacks = [norms] if i % 2 else []
    first = model.fit(X, Y, epochs=4, validation_data=(X, Y), verbose=0, callbacks=callbacks)
    second = model.fit(Batches(), epochs=3, verbose=0)
    return first.history, second.history, getattr(norms, "norms", []), drawn


notes = []
if "KILL" in os.environ:
    open(os.environ["KILL"], "w").close()
calls = list(paceline.map(train, range(3), seeds=4, notes=notes.append))
backend = keras.backend.backend()
print("FOUND" + json.dumps({"calls": calls, "notes": notes, "backend": backend}))
"""


@pytest.mark.slow
def test_fits_are_those_of_a_session_on_jax_also_after_a_kill(fresh_folder: Path) -> None:
    here = run_script(FITS, "jax")
    assert here["notes"] == [] and "6 fits in packs" in here["stderr"]
    for more in ({}, {"KILL": str(fresh_folder / "kill")}):
        there = run_script(FITS, "numpy", **more)
        assert there["backend"] == "numpy" and "6 fits in packs" in there["stderr"]
        assert len(there["notes"]) == len(more) and not (fresh_folder / "kill").exists()
        for one, other in zip(there["calls"], here["calls"], strict=True):
            assert one[0] == other[0]
            if more:
                # What was watched has not started over, so its function's next fit came alone into
                # a smaller pack, which rounds otherwise: 7e-8 measured.
                assert one[1] == {k: pytest.approx(v, rel=1e-6) for k, v in other[1].items()}
            else:
                assert one[1] == other[1]
            assert one[3] == other[3]
            assert one[2] == pytest.approx(other[2], rel=1e-6)  # NumPy adds in another order
    assert "SIGKILL" in there["notes"][0]


BY_BATCH = """
import glob, signal


class WarmUp(keras.callbacks.Callback):
    def __init__(self, i):
        super().__init__()
        self.i, self.step, self.seen = i, 0, []

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.model.optimizer.learning_rate = 0.01 * self.i * min(1.0, self.step / 3)

    def on_train_batch_end(self, batch, logs=None):
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.seen.append([batch, logs["loss"], rate])
        if self.i == 2 and self.step == 7:
            self.model.stop_training = True
        if self.step == 4 and os.environ.get("KILL") == str(self.i):
            for path in glob.glob("/proc/[0-9]*/status"):
                if f"PPid:\\t{os.getpid()}\\n" in open(path).read():
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)


def train(i):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.set_weights([np.ones((6, 3)), np.zeros(3)])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    warm_up = WarmUp(i)
    try:
        history = model.fit(X, Y, 12, epochs=3, verbose=0, callbacks=[warm_up] if i else [])
    except RuntimeError as error:
        return str(error)
    return history.history, warm_up.seen, model.get_weights()[0].tolist()


notes = []
calls = list(paceline.map(train, range(4), seeds=4, notes=notes.append))
print("FOUND" + json.dumps({"calls": calls, "notes": notes}))
"""


@pytest.mark.slow
def test_hooks_between_batches_run_in_the_session() -> None:
    here, there = run_script(BY_BATCH, "jax"), run_script(BY_BATCH, "numpy")
    assert here["notes"] == there["notes"] == [] and "4 fits in packs" in there["stderr"]
    assert [len(seen) for _, seen, _ in there["calls"]] == [0, 15, 7, 15]
    assert there["calls"] == here["calls"]


@pytest.mark.slow
def test_a_process_that_dies_between_batches_fails_the_fits_that_have_begun_an_epoch() -> None:
    """Their callbacks would act twice. The other fits have the same results as without it."""
    here, there = run_script(BY_BATCH, "jax"), run_script(BY_BATCH, "numpy", KILL="1")
    assert "SIGKILL) between two batches" in there["calls"][1]
    for i in (0, 2, 3):
        if i == 0 or "SIGKILL) between two batches" not in there["calls"][i]:
            # In a smaller pack, which rounds otherwise: 2e-8 measured.
            losses = [one["calls"][i][0]["loss"] for one in (here, there)]
            assert losses[1] == pytest.approx(losses[0], rel=1e-6)
