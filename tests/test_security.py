"""A study from a stranger: opening it, reporting on it, going on with it runs none of his code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle  # noqa: TID251 - to make what must not be read
from pathlib import Path
from typing import Any

import keras
import numpy as np
import optuna
import pytest
from safetensors.numpy import save_file

import paceline
import toys
from paceline.cli.app import main
from paceline.report.formats import visible
from paceline.study.study import Study
from paceline.tuner.checkpoint import files

X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 2,
    "batch_size": 16,
    "n_trials": 2,
}
MARK = Path("it ran")


class Bomb:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> Any:
        return Path.touch, (MARK,)


@pytest.fixture(autouse=True)
def nothing_ran(fresh_folder: Path):
    yield
    assert not (fresh_folder / MARK).exists()


@pytest.fixture
def command(capsys):
    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit, match="^[0-9]+$") as stop:
            main(words)
        found = capsys.readouterr()
        return int(str(stop.value.code)), found.out + " ".join(found.err.split())

    return run


# -- pickles in a storage --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["cma:optimizer:0"]
    + [pytest.param(f"{kind}:optimizer:0", marks=pytest.mark.slow) for kind in ("sepcma", "cmawm")],
)
def test_pickles_of_cma_es_are_refused(make, command, key) -> None:
    url = "sqlite:///study.db"
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    trial = optuna.trial.create_trial(value=1.0, system_attrs={key: pickle.dumps(Bomb()).hex()})
    study.add_trial(trial)
    with pytest.raises(paceline.StorageError, match=r"pickles of Optuna's CMA-ES.*\(trial 0\)"):
        make(storage=url).search(X, Y, **CALL)
    with pytest.raises(paceline.StorageError, match="pickles"):
        make(storage=url).results()
    for words in (["trials", "s"], ["best", "s"], ["resume", "s"], ["export", "s"]):
        code, said = command(*words, "--storage", url)
        assert (code, "pickles of Optuna's CMA-ES" in said) == (2, True)


# -- models and arrays -----------------------------------------------------------------------------


def test_a_lambda_layer_in_a_saved_model_is_not_run(make, command) -> None:
    """The stranger's manifest vouches for his own file."""
    make().search(X, Y, **CALL)
    folder = Path("runs/s/best")
    (path,) = folder.glob("*.keras")
    mark = str(MARK.resolve())
    evil = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Lambda(lambda x: (os.makedirs(mark, exist_ok=True), x)[1]),
            keras.layers.Dense(toys.CLASSES, activation="softmax"),
        ]
    )
    evil.compile("adam", "sparse_categorical_crossentropy")
    evil.save(path)
    MARK.rmdir()  # to make it is to run it
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest.values():
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with contextlib.suppress(paceline.StudyError):  # his weights may or may not fit
        make().best_model()
    assert command("export", "s", "-o", "out.keras")[0] == 0
    with pytest.raises(ValueError, match="[Ll]ambda"):  # Keras' own safe mode
        keras.models.load_model("out.keras")


@pytest.mark.parametrize(
    "facts",
    [
        "[" * 100_000,
        '{"format": FORMAT, "kinds": {"a": ["O", [1]]}, "facts": {}}',
        '{"format": FORMAT, "kinds": {"a": ["float64", [99999999999]]}, "facts": {}}',
        '{"format": FORMAT, "kinds": 3, "facts": {}}',
        '{"format": "__import__"}',
    ],
)
def test_checkpoints_that_are_made_up_are_left(fresh_folder, facts) -> None:
    folder = Path("checkpoints")
    folder.mkdir()
    facts = facts.replace("FORMAT", str(files.FORMAT))
    save_file({"a": np.zeros(8, np.uint8)}, folder / "x", {"paceline": facts})
    digest = hashlib.sha256((folder / "x").read_bytes()).hexdigest()[:16]
    os.replace(folder / "x", folder / f"checkpoint-000001-{digest}.safetensors")
    notes: list[str] = []
    assert files.CheckpointManager(folder, notes.append).load() is None
    assert len(notes) == 1
    assert "has format" not in notes[0], "it is refused for what it holds"


def test_a_checkpoint_cannot_say_that_it_is_large(fresh_folder) -> None:
    """Its arrays are as large as the file: no bomb."""
    header = json.dumps({"a": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}})
    body = len(header).to_bytes(8, "little") + header.encode()
    digest = hashlib.sha256(body).hexdigest()[:16]
    path = Path(f"checkpoint-000001-{digest}.safetensors")
    path.write_bytes(body)
    found, why = files.load_checkpoint(path, digest)
    assert found is None
    assert "SafetensorError" in why


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["journal.log", "best"]
    + [pytest.param(n, marks=pytest.mark.slow) for n in ("checkpoints", "ends", ".lock", "new")],
)
def test_links_out_of_a_study_are_refused(make, command, name) -> None:
    make().search(X, Y, **CALL)
    outside = Path("outside")
    path = Path("runs/s") / name
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    path.symlink_to(outside.resolve())
    before = sorted(outside.rglob("*")), outside.stat().st_size
    for call in (make().results, lambda: make().search(X, Y, **(CALL | {"n_trials": 3}))):
        with pytest.raises(paceline.StudyError, match=rf"{name} is a link out of the study's"):
            call()
    for words in (["trials", "s"], ["best", "s"], ["export", "s"], ["resume", "s"]):
        code, said = command(*words)
        assert (code, "is a link out of the study's folder" in said) == (2, True)
    assert (sorted(outside.rglob("*")), outside.stat().st_size) == before


def test_links_within_and_a_folder_elsewhere_are_fine(make) -> None:
    """As on a cluster, where ``runs`` is on another disk."""
    Path("scratch").mkdir()
    Path("runs").symlink_to("scratch")
    make().search(X, Y, **CALL)
    Path("runs/s/latest").symlink_to("best")
    make().search(X, Y, **(CALL | {"n_trials": 3}))
    assert len(make().results()) == 3


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".hidden",
        "a\nb",
        "a\x1b[2Jb",
        "a\0b",
        "a\u202eb",
    ],
)
def test_names_that_are_none(make, command, name) -> None:
    with pytest.raises(paceline.StudyError, match="study name must"):
        make(study=name).search(X, Y, **CALL)
    for words in (["trials", name], ["best", name], ["resume", name], ["export", name]):
        code, said = command(*words)
        assert (code, "study name must" in said) == (2, True)
    assert "\x1b" not in said
    assert not list(Path().iterdir())


@pytest.mark.parametrize("storage", ["journal:a\nb.log", "journal:\x1b[2J.log", "sqlite:///a\0.db"])
def test_storages_with_control_characters(make, command, storage) -> None:
    with pytest.raises(paceline.StorageError, match="control characters"):
        make(storage=storage).search(X, Y, **CALL)
    code, said = command("trials", "s", "--storage", storage)
    assert (code, "\x1b" in said) == (2, False)


@pytest.mark.parametrize("output", ["a\nb.keras", "\x1b[2J.keras", "a\0.keras"])
def test_outputs_with_control_characters(make, command, output) -> None:
    code, said = command("export", "s", "-o", output)
    assert (code, "control characters" in said) == (2, True)


def test_a_journal_may_be_anywhere_the_user_says(make, tmp_path) -> None:
    path = tmp_path / "deep" / "er" / "s.log"
    make(storage=f"journal:{path}").search(X, Y, **CALL)
    assert len(make(storage=f"journal:{path}").results()) == 2


def test_texts_of_a_stranger_do_not_steer_the_terminal(command) -> None:
    study = Study("s", direction="maximize", storage="journal:s.log")
    study.persist({"objective": "val_\x1b]0;title\x07", "direction": "maximize", "search": {}})
    hp = paceline.HyperParameters()
    hp.Choice("na\x1b[2Jme", ["a\x1b[31m", "b"])
    number = study.accept(study.proposer.ask(0), hp)
    study.updates.finish(number, "failed", attrs={"error": "bad \x1b[2J\x9b news"})
    study.close()
    for words in (["trials", "s"], ["trials", "s", "--csv"], ["best", "s"]):
        _, said = command(*words, "--storage", "journal:s.log")
        assert "\x1b" not in said
        assert "\x9b" not in said
    assert visible("a\x1b[2J\tb\nü─") == "a\\x1b[2J\tb\nü─"


# -- the file that a study came from ---------------------------------------------------------------


def stored_with(origin: Any) -> None:
    study = Study("s", direction="maximize")
    study.persist(
        {"objective": "val_accuracy", "direction": "maximize", "search": {}, "origin": origin}
    )
    study.close()


def test_a_file_among_the_studies_is_not_run(command) -> None:
    path = Path("runs/s/model.py").resolve()
    stored_with({"file": str(path), "function": "build", "digest": "x", "data": None})
    path.write_text(f"open({str(MARK.resolve())!r}, 'w')\ndef build(hp): pass\n")
    for words in (["resume", "s"], ["reproduce", "s", "0"]):
        code, said = command(*words)
        assert (code, "a file in the folder of the studies" in said) == (2, True)


def test_a_study_whose_file_is_not_there_is_not_gone_on_with(command) -> None:
    stored_with({"file": "/nowhere/model.py", "function": "build", "digest": "x", "data": None})
    code, said = command("resume", "s")
    assert (code, "is missing" in said) == (2, True)


@pytest.mark.parametrize("origin", [3, [], {"file": 3}, {"file": "x"}, {"file": ["a"], "data": 1}])
def test_an_origin_that_is_none(command, origin) -> None:
    stored_with(origin)
    code, said = command("resume", "s")
    assert (code, "was not made by `paceline search`" in said) == (2, True)
