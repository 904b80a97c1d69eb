"""What ``import paceline`` chooses: backend, XLA's options; what is said of other backends."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import pytest

import paceline
import toys
from paceline.compat import keras_tuner, talos
from paceline.compat.keras_tuner import oracle_search, own_process
from paceline.program.keras_backend import chosen_in_file, reason
from paceline.tuner.search import own_process as of_searches
from paceline.tuner.search.progress import unpacked_backend

SHOW = "import os; print(os.environ.get('KERAS_BACKEND'))"


def child(code: str, **environment: str) -> str:
    ours = ("KERAS_BACKEND", "KERAS_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "HOME": str(Path.cwd()), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FLAGS = "import os; print(os.environ.get('XLA_FLAGS'))"
OURS = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling=true"


@pytest.mark.parametrize(
    ("before", "flags", "after"),
    [
        ("", "", OURS),
        ("", "--xla_force_host_platform_device_count=2", None),
        ("import jax.numpy; ", "", OURS),
        ("import jax; jax.devices(); ", "", ""),  # XLA does not read it again
        ("", "--xla_backend_extra_options=xla_cpu_fold_all_constants", "the user's"),
        ("", "flags.txt", "the user's"),
    ],
    ids=["nothing", "others", "jax is loaded", "jax has devices", "extra options", "a file"],
)
def test_loops_are_not_unrolled_unless_it_is_too_late_or_the_user_has_chosen(
    before: str, flags: str, after: str | None
) -> None:
    wanted = {None: f"{flags} {OURS}", "the user's": flags}.get(after, after)
    assert child(f"{before}import paceline; {FLAGS}", XLA_FLAGS=flags) == wanted


def test_keras_is_imported_without_garbage_collections() -> None:
    count = (
        "import gc, paceline; seen = []; gc.callbacks.append(lambda *_: seen.append(1)); "
        "import {}; print(len(seen) < 10, gc.isenabled(), gc.get_freeze_count())"
    )
    assert child(count.format("keras"), KERAS_BACKEND="jax") == "True True 0"
    off = "import gc; gc.disable(); gc.freeze(); " + count.format("paceline.compat.optuna")
    assert child(off).startswith("True False ")


def test_names_that_are_loaded_leave_the_garbage_collector_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rest would put the user's young garbage among what is seldom looked at."""
    known = [paceline.HyperParameters, paceline.map]
    monkeypatch.setattr(gc, "disable", lambda: pytest.fail("the collector rests"))
    assert [paceline.HyperParameters, paceline.map] == known


def test_options_of_xla_are_left_alone_on_another_backend() -> None:
    assert child(f"import paceline; {FLAGS}", XLA_FLAGS="", KERAS_BACKEND="numpy") == ""


def said(text: str) -> None:
    Path(".keras").mkdir(exist_ok=True)
    Path(".keras/keras.json").write_text(text, encoding="utf-8")


#: The keras.json that Keras writes at its first import: one text from Keras 3.10.0 to 3.15.1, by
#: keras/src/backend/config.py of each wheel. Tests of sessions have the file of an installed Keras.
WRITTEN = """{
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last"
}"""


def test_the_file_that_keras_writes_is_no_choice(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # all are installed
    monkeypatch.setenv("KERAS_HOME", str(Path.cwd() / ".keras"))
    said(WRITTEN)
    assert chosen_in_file() is None
    defaults = json.loads(WRITTEN)
    for change in ({"backend": "torch"}, {"backend": "jax"}, {"floatx": "float16"}):
        Path(".keras/keras.json").write_text(json.dumps(defaults | change), encoding="utf-8")
        assert chosen_in_file() == (str(Path.cwd() / ".keras/keras.json"), defaults | change)


def test_jax_is_chosen_where_nobody_has_chosen():
    assert child(f"import paceline; {SHOW}; import keras; print(keras.backend.backend())") == (
        "jax\njax"
    )
    written = Path(".keras/keras.json").read_bytes()  # by the release that is installed
    Path("tensorflow").mkdir()
    Path("tensorflow/__init__.py").touch()
    assert child(f"import paceline; {SHOW}") == "jax"
    assert child(f"import paceline; {SHOW}", KERAS_BACKEND="") == "jax"  # as Keras reads it
    assert Path(".keras/keras.json").read_bytes() == written
    said(json.dumps({"backend": "tensorflow"}))
    assert child(f"import paceline; {SHOW}") == "None"


def test_nothing_is_written():
    assert child(f"import paceline; {SHOW}") == "jax"
    assert list(Path().iterdir()) == []


def test_a_choice_in_the_environment_stays():
    assert child(f"import paceline; {SHOW}", KERAS_BACKEND="numpy") == "numpy"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"backend": "numpy"}), "None"),  # installed: Keras reads it there
        (json.dumps({"backend": "no_such_backend"}), "jax"),
        (json.dumps({"floatx": "float32"}), "jax"),
        ("[1]", "jax"),
        ("no json", "jax"),
    ],
)
def test_a_choice_in_keras_own_file_stays(text, expected):
    said(text)
    assert child(f"import paceline; {SHOW}") == expected
    Path(".keras").rename("elsewhere")
    assert child(f"import paceline; {SHOW}", KERAS_HOME="elsewhere") == expected


def test_where_keras_is_loaded_nothing_changes():
    loaded = "import sys, types; sys.modules['keras'] = types.ModuleType('keras')"
    assert child(f"{loaded}; import paceline; {SHOW}") == "None"


def searching(monkeypatch, notes: list[str], **arguments) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    tuner = paceline.Tuner(toys.dense, study="s", on_note=notes.append, **arguments)
    monkeypatch.setattr(tuner, "_view", None)  # the search ends here
    with pytest.raises(TypeError, match="NoneType"):
        tuner.search(*toys.data(), n_trials=1)


def test_a_backend_other_than_jax_is_said_in_a_box(monkeypatch):
    """By whatever trains in ``fit`` there without having tried the session's own process."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", "nowhere")
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    box = unpacked_backend()
    assert box is not None
    lines = box.splitlines()
    assert "This search will be many times slower than it could be" in lines[1]
    assert max(map(len, lines)) <= 76
    text = " ".join(line.removeprefix("\u2502 ") for line in lines[2 : lines.index("", 1)])
    assert "Keras runs on tensorflow, because keras was imported before paceline (" in text
    code = "\n".join(lines[lines.index("", 1) + 1 :]).split("\n\n")[0]
    assert len(code.splitlines()) == 2
    before = dict(os.environ)
    exec(code, vars(types.ModuleType("here")))
    assert os.environ["KERAS_BACKEND"] == "jax"
    os.environ.clear()
    os.environ.update(before)


def test_nothing_is_said_of_it_where_fit_was_asked_for(monkeypatch):
    notes: list[str] = []
    searching(monkeypatch, notes, executor="fit")
    assert notes == []


def test_why_keras_runs_on_another_backend(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("KERAS_HOME", str(Path.cwd() / ".keras"))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert reason("tensorflow") == "KERAS_BACKEND=tensorflow is set"
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # too late
    assert reason("torch") == "keras was imported before paceline"
    for change, key in (({"backend": "torch"}, "backend"), ({"floatx": "float16"}, "floatx")):
        content = json.loads(WRITTEN) | change
        said(json.dumps(content))
        assert reason(content["backend"]) == (
            f"{Path.cwd() / '.keras/keras.json'} names it and differs from the file that Keras "
            f'writes by itself, in "{key}"'
        )
    assert reason("numpy") == "keras was imported before paceline"  # and the file is not why


@pytest.mark.parametrize("verbose", [0, 1])
def test_searches_of_keras_tuner_say_it_too(verbose, monkeypatch, capsys):
    monkeypatch.setattr(oracle_search, "search", lambda *_, **__: None)
    monkeypatch.setattr(own_process, "search", lambda *_: "a layer calls torch.relu")
    tuner = keras_tuner.RandomSearch(toys.dense, objective="val_accuracy", max_trials=1)
    for backend, times in (("torch", 1), ("jax", 0)):
        monkeypatch.setattr(keras.backend, "backend", lambda name=backend: name)
        tuner.search(*toys.data(), verbose=verbose)
        said = "in Keras' fit on torch, because they cannot train in packs on JAX: a layer calls"
        assert capsys.readouterr().err.count(said) == times


def test_scans_of_talos_say_it_too(monkeypatch, capsys):
    def model(x, y, x_val, y_val, params):
        made = toys.softmax()
        return made.fit(x, y, validation_data=(x_val, y_val)), made

    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    monkeypatch.setattr(of_searches, "why_in_session", lambda given: "there are no sockets")
    talos.Scan(*toys.data(), {"a": [1, 2]}, model, disable_progress_bar=True)
    said = capsys.readouterr().err
    assert said.count("in Keras' fit on torch, because they cannot train in packs") == 1
    assert "there are no sockets" in said
    assert "one at a time" not in said  # that sentence is told in place of this one


def test_tensorboard_without_its_packages_is_an_error_before_the_search(monkeypatch):
    from paceline.pack.callbacks import packable

    monkeypatch.setattr(packable, "find_spec", lambda name: None)
    for given in (
        [keras.callbacks.TensorBoard("logs")],
        lambda hp: keras.callbacks.TensorBoard("logs"),
    ):
        tuner = paceline.Tuner(toys.dense, study="s", on_note=lambda text: None)
        with pytest.raises(
            paceline.MissingExtraError,
            match="pip install tensorflow tensorboard. Keras can still run",
        ):
            tuner.search(*toys.data(), n_trials=1, callbacks=given, **toys.CALL)
    assert not Path("runs").exists()


def test_a_search_all_of_whose_trials_fail_raises():
    def build(hp):
        if hp.Float("rate", 0.1, 1.0) != 0.1:  # the first model is that of the defaults
            raise ValueError("no such thing")
        return toys.dense(hp)

    tuner = paceline.Tuner(build, study="s", sampler="random", on_note=lambda text: None)
    with pytest.raises(
        paceline.BuildError, match="every trial of this search failed; the last.*no such"
    ):
        tuner.search(*toys.data(), n_trials=2, **toys.CALL)
    assert tuner.results()["state"].tolist() == ["failed", "failed"]


def test_what_the_guide_makes_of_texts_trains():
    texts = ["a cat sat on it", "the dog ran", "a dog sat", "the cat ran away now"] * 6
    page = (Path(__file__).parents[1] / "docs/guides/data.md").read_text(encoding="utf-8")
    part = page.partition("## Text and preprocessing")[2].partition("###")[0]
    blocks = [block.partition("```")[0] for block in part.split("```python\n")[1:]]
    assert len(blocks) == 2
    found = []
    for block in blocks:
        names = {"texts": texts}
        exec(block, names)
        found.append(names["x"])
    assert found[0].dtype == "float32" and found[0].shape[0] == 24
    assert found[1].shape == (24, 200) and (found[1][0, :3] > 1).all() and found[1][0, 10] == 0

    def build(hp):
        layers = [
            keras.Input((200,)),
            keras.layers.Embedding(5002, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2, activation="softmax"),
        ]
        return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1))

    tuner = paceline.Tuner(build, study="s", sampler="random", on_note=lambda text: None)
    tuner.search(found[1], [0, 1] * 12, n_trials=1, epochs=1, validation_split=0.25)
    assert tuner.best_trial.plan != "fit"
