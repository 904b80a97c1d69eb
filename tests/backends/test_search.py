"""A whole search on the backend that Keras runs on here (`make test-backends`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from stopping import hears_signals  # noqa: F401 - a fixture

BACKEND = keras.backend.backend()
# On JAX each has its like in tests of searches with executor="fit" (pruning, resuming).
pytestmark = [pytest.mark.slow] if BACKEND == "jax" else []
X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
CALL: dict[str, Any] = {"validation_data": (XV, YV), "epochs": 3, "batch_size": 16}


def test_a_search_with_a_pruner_and_its_best_model(fresh_folder) -> None:
    notes: list[str] = []
    tuner = paceline.Tuner(
        toys.dense, executor="fit", sampler="random", pruner="threshold:0.4", on_note=notes.append
    )
    tuner.search(X, Y, **CALL, n_trials=6)
    results = tuner.results()
    assert set(results["plan"]) == {"fit"}
    assert set(results["state"]) == {"complete", "pruned"}
    assert [len(tuner.history(n)["val_loss"]) for n in range(6)] == results["epochs"].tolist()
    value = tuner.best_model().evaluate(XV, YV, verbose=0, return_dict=True)["accuracy"]
    assert value == pytest.approx(tuner.best_trial.value, abs=1e-5)
    again = paceline.Tuner(
        toys.dense, executor="fit", sampler="random", pruner="threshold:0.4", on_note=notes.append
    )
    loaded = again.best_model()  # from the file
    for a, b in zip(loaded.get_weights(), tuner.best_model().get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert tuner.trial(0).fallback_reason == "executor='fit'"
    assert again.trial(0).fallback_reason == "executor='fit'"
    reproduced = tuner.reproduce(0, X, Y, validation_data=(XV, YV))
    assert max(reproduced.differences.values()) < 1e-4
    assert reproduced.notes == ()


@pytest.mark.skipif(BACKEND == "jax", reason="it is JAX that must not be asked")
def test_jax_is_asked_nothing(child_environment, fresh_folder) -> None:
    """Not even for its devices, which it would claim, where ``fit`` trains; from the command."""
    Path("model.py").write_text(
        f"import os\nos.environ['KERAS_BACKEND'] = {BACKEND!r}\n{toys.MODEL_FILE}"
    )
    environment = {**child_environment, "JAX_PLATFORMS": "there_is_no_such"}
    environment.pop("KERAS_BACKEND")
    python = [sys.executable, "-c", "from paceline.cli.app import main; main()"]
    few = ["--trials", "2", "--epochs", "1", "--sampler", "random", "--executor", "fit"]
    done = subprocess.run(
        [*python, "search", "model.py", *few],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Keras runs on" not in done.stderr and "one after another" not in done.stderr


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras writes its name, whatever is installed")
def test_a_file_that_keras_has_written_leads_to_packs(child_environment, fresh_folder) -> None:
    """Keras' own file is no choice; where Keras was imported first, another process packs."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(toys.__file__).parent)!r})
import paceline, toys
notes = []
tuner = paceline.Tuner(
    toys.dense, study="s", sampler="random", overwrite=True, on_note=notes.append
)
tuner.search(*toys.data(), validation_split=0.25, batch_size=16, n_trials=2)
print(set(tuner.results()["plan"]), notes)
"""
    environment = {**child_environment, "KERAS_HOME": "written", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERAS_BACKEND")
    told = []
    for code in ("import keras", script, f"import keras\n{script}"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert '"backend": "tensorflow"' in Path("written/keras.json").read_text()
        told.append(done.stdout)
    for each in told[1:]:
        assert each.endswith("} []\n") and "'fit'" not in each


@pytest.mark.skipif(BACKEND != "tensorflow", reason="replicas are TensorFlow's")
def test_batches_are_split_over_replicas_and_it_is_said(child_environment) -> None:
    """Four CPU devices, which TensorFlow must be told of before it is used."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(toys.__file__).parent)!r})
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
import numpy as np, keras, paceline, toys
x, y = toys.data(50)
xv, yv = toys.data(23, seed=1)
seen = []
class Sees(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        strategy = self.model.distribute_strategy
        seen.append((type(strategy).__name__, strategy.num_replicas_in_sync))
    def on_epoch_end(self, epoch, logs=None):
        seen.append(int(self.model.optimizer.iterations.numpy()))
notes = []
tuner = paceline.Tuner(lambda hp: toys.softmax(), sampler="grid", on_note=notes.append)
tuner.search(x, y, validation_data=(xv, yv), epochs=2, batch_size=18, shuffle=False,
             callbacks=[Sees()])
assert seen == [("MirroredStrategy", 4), 3, 6], seen
assert "TensorFlow: MirroredStrategy over 4 devices; each batch is split" in notes, notes
assert "batch_size: 18 becomes 16, so that 4 replicas get equal parts" in notes, notes
assert any("the last 2 of 50 training examples are left out" in n for n in notes), notes
assert any("the last 3 of 23 validation examples are left out" in n for n in notes), notes
history = tuner.history(0)
keras.utils.set_random_seed(tuner.trial(0).seed)
alone = toys.softmax().fit(x[:48], y[:48], validation_data=(xv[:20], yv[:20]), epochs=2,
                           batch_size=16, shuffle=False, verbose=0).history
for name, values in alone.items():
    np.testing.assert_allclose(history[name], values, atol=1e-4, err_msg=name)
print("all as alone")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**child_environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.endswith("all as alone\n"), done.stdout + done.stderr


@pytest.mark.parametrize("stop", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_trial_that_was_stopped_goes_on_between_epochs(fresh_folder, monkeypatch, stop) -> None:
    """Weights, optimizer, dropout, order of examples, and what callbacks hold."""

    def interrupt(report: Any) -> None:
        if len(epochs) == left[0]:
            os.kill(os.getpid(), signal.SIGINT)

    def search(study: str) -> paceline.Tuner:
        tuner = paceline.Tuner(
            toys.dense, study=study, executor="fit", sampler="random", on_note=lambda _: None
        )
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=9.0)
        tuner.search(X, Y, **CALL, n_trials=2, callbacks=[plateau])
        return tuner

    epochs = observe_reports(monkeypatch, before=interrupt)
    left = [0]
    whole = search("whole")
    left[0] = len(epochs) + stop
    with pytest.raises(KeyboardInterrupt, match="^$"):
        search("s")
    again = search("s")
    assert len(epochs) == 2 * 2 * CALL["epochs"], "an epoch was trained twice"
    for number in range(2):
        history = again.history(number)
        assert len(set(history["learning_rate"])) > 1
        for name, values in whole.history(number).items():
            # The same machine and the same sums: only threads could add in another order.
            np.testing.assert_allclose(history[name], values, rtol=1e-6, err_msg=name)


def resident() -> float:
    """MiB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux")
def test_memory_stays_flat(fresh_folder) -> None:
    """100 trials; the first 20 fill what is filled once."""
    tuner = paceline.Tuner(toys.dense, executor="fit", sampler="random", on_note=lambda _: None)
    measured = []
    for _ in range(5):
        tuner.search(X, Y, **(CALL | {"epochs": 1}), n_trials="+20")
        measured.append(resident())
    # A leaked model or graph is megabytes: 2.7 a trial before gradients were forgotten.
    assert measured[-1] - measured[0] < 80 * 0.25, measured
