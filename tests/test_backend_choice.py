"""What ``import paceline`` chooses: backend, XLA's options; what is said of other backends."""

from __future__ import annotations

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


def test_options_of_xla_are_left_alone_on_another_backend() -> None:
    assert child(f"import paceline; {FLAGS}", XLA_FLAGS="", KERAS_BACKEND="numpy") == ""


def said(text: str) -> None:
    Path(".keras").mkdir()
    Path(".keras/keras.json").write_text(text, encoding="utf-8")


def test_jax_is_chosen_where_nobody_has_chosen():
    assert child(f"import paceline; {SHOW}; import keras; print(keras.backend.backend())") == (
        "jax\njax"
    )


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
    tuner = paceline.Tuner(toys.dense, study="s", notes=notes.append, **arguments)
    monkeypatch.setattr(tuner, "_view", None)  # the search ends here
    with pytest.raises(TypeError, match="NoneType"):
        tuner.search(*toys.data(), n_trials=1)


def test_a_backend_that_nobody_chose_is_said_in_a_box(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    notes: list[str] = []
    searching(monkeypatch, notes)
    (box,) = notes
    lines = box.splitlines()
    assert "Keras runs on tensorflow" in lines[1]
    assert max(map(len, lines)) <= 76
    code = "\n".join(lines[lines.index("") + 1 :]).split("\n\n")[1]
    here = types.ModuleType("here")
    before = dict(os.environ)
    exec(code, vars(here))
    assert os.environ["KERAS_BACKEND"] == "jax"
    os.environ.clear()
    os.environ.update(before)


def test_a_backend_that_somebody_chose_is_not(monkeypatch):
    notes: list[str] = []
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    searching(monkeypatch, notes)
    monkeypatch.delenv("KERAS_BACKEND")
    searching(monkeypatch, notes, executor="fit")
    assert notes == []


def test_tensorboard_without_its_packages_is_an_error_before_the_search(monkeypatch):
    from paceline.pack.callbacks import packable

    monkeypatch.setattr(packable, "find_spec", lambda name: None)
    for given in (
        [keras.callbacks.TensorBoard("logs")],
        lambda hp: keras.callbacks.TensorBoard("logs"),
    ):
        tuner = paceline.Tuner(toys.dense, study="s", notes=lambda text: None)
        with pytest.raises(
            paceline.MissingExtraError, match="pip install tensorflow tensorboard. Keras can run"
        ):
            tuner.search(*toys.data(), n_trials=1, callbacks=given, **toys.CALL)
    assert not Path("runs").exists()


def test_a_search_all_of_whose_trials_fail_raises():
    def build(hp):
        if hp.Float("rate", 0.1, 1.0) != 0.1:  # the first model is that of the defaults
            raise ValueError("no such thing")
        return toys.dense(hp)

    tuner = paceline.Tuner(build, study="s", sampler="random", notes=lambda text: None)
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

    tuner = paceline.Tuner(build, study="s", sampler="random", notes=lambda text: None)
    tuner.search(found[1], [0, 1] * 12, n_trials=1, epochs=1, validation_split=0.25)
    assert tuner.best_trial.plan != "fit"
