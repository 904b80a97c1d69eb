"""``paceline best``, ``trials`` and ``export``: reading what a study holds."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import output
from paceline.study.study import Study

META = {"objective": "val_accuracy", "direction": "maximize", "sampler": "random", "seed": 0}


@pytest.fixture
def study() -> str:
    """A study of two complete trials and a failed one, the second of them the best."""
    study = Study("digits", direction="maximize", seed=3)
    study.persist(META)
    for value in (0.5, 0.75, None):
        proposal = study.asker.propose(
            lambda hp, proposal: hp.Float("lr", 1e-4, 1e-1, sampling="log")
        )
        assert proposal is not None
        proposal, hp, _ = proposal
        number = study.accept(proposal, hp)
        if value is None:
            study.updates.finish(number, "failed", attrs={"error": "loss is nan at epoch 1"})
            continue
        study.updates.report(number, 1, {"val_accuracy": value, "loss": 0.1}, value)
        attrs = {"epochs": 1, "train_seconds": 0.25, "program_id": "a1b2", "plan": "vectorized"}
        study.updates.finish(number, "complete", value=value, attrs=attrs)
    study.close()
    return "digits"


@pytest.fixture
def saved_model(study: str) -> bytes:
    """The best trial's model as the tuner leaves it; its content does not matter here."""
    folder = Path("runs/digits/best")
    folder.mkdir()
    content = b"not really a model"
    (folder / "trial-1-epoch-1.keras").write_bytes(content)
    entry = {
        "file": "trial-1-epoch-1.keras",
        "epoch": 1,
        "value": 0.75,
        "sha256": hashlib.sha256(content).hexdigest(),
        "study": Study(study).metadata.id,
    }
    (folder / "manifest.json").write_text(json.dumps({"1": entry}), encoding="utf-8")
    return content


def test_best_says_the_configuration(paceline, study):
    done = paceline("best", study)
    assert done.code == 0
    assert done.out.startswith("Best: val_accuracy 0.7500, trial 1, 1 epoch\n  lr  ")
    assert done.err == ""


def test_best_as_json_is_one_object(paceline, study):
    best = paceline("best", study, "--json").json
    assert list(best) == ["number", "state", "value", "hparams", "epochs", "best_epoch"]
    assert (best["number"], best["value"], best["epochs"]) == (1, 0.75, 1)
    assert 1e-4 <= best["hparams"]["lr"] <= 1e-1


def test_trials_are_a_table(paceline, study):
    done = paceline("trials", study)
    lines = done.out.splitlines()
    assert lines[0].split() == ["trial", "state", "value", "epoch", "time", "lr"]
    assert lines[3].split()[:4] == ["*", "1", "complete", "0.7500"]
    assert lines[-2:] == ["trial 2 failed: loss is nan at epoch 1", "* best val_accuracy"]


def test_trials_as_json_are_a_list(paceline, study):
    first, second, third = paceline("trials", study, "--json").json
    assert list(first) == [
        "number",
        "state",
        "value",
        "hparams",
        "best_epoch",
        "epochs",
        "train_seconds",
        "seed",
        "program_id",
        "plan",
    ]
    assert (first["state"], first["value"], first["plan"]) == ("complete", 0.5, "vectorized")
    assert first["seed"] != second["seed"]
    assert (third["state"], third["value"], third["program_id"]) == ("failed", None, None)


def test_trials_as_csv_hold_the_same_numbers(paceline, study):
    rows = list(csv.DictReader(io.StringIO(paceline("trials", study, "--csv").out)))
    records = paceline("trials", study, "--json").json
    assert [float(row["lr"]) for row in rows] == [record["hparams"]["lr"] for record in records]
    assert rows[2]["value"] == ""


@pytest.mark.parametrize(
    ("terminal", "written"),
    [
        (False, "half\u00a0price \u200d\n\\x1b[2J"),
        (True, "half\\xa0price \\u200d\n\\x1b[2J"),
    ],
)
def test_csv_has_the_values_as_they_are_and_steers_no_terminal(
    paceline, monkeypatch, terminal, written
):
    study = Study("wild", direction="maximize", seed=3)
    study.persist(META)
    value = "half\u00a0price \u200d\n\x1b[2J"
    proposal = study.asker.propose(lambda hp, proposal: hp.Choice("name", [value]))
    assert proposal is not None
    study.accept(*proposal[:2])
    study.close()
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: terminal)
    (row,) = csv.DictReader(io.StringIO(paceline("trials", "wild", "--csv").out))
    assert row["name"] == written


def test_csv_and_json_exclude_each_other(paceline, study):
    done = paceline("trials", study, "--csv", "--json")
    assert done.code == 2
    assert "--csv and --json exclude each other" in done.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--top", "2", "--all"], "--top and --all exclude each other. Use one of them"),
        (["--top", "2", "--limit", "5"], "--top and --limit exclude each other. Use one of them"),
        (["--limit", "5", "--all"], "--limit and --all exclude each other. Use one of them"),
        (
            ["--top", "2", "--limit", "5", "--all"],
            "--top, --limit and --all exclude each other. Use one of them",
        ),
    ],
)
def test_what_says_how_many_trials_is_given_once(paceline, study, words, why):
    done = paceline("trials", study, *words)
    assert (done.code, done.out) == (2, "")
    assert why in done.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "numbers"),
    [(["--top", "1"], [1]), (["--limit", "1"], [0]), (["--all"], [0, 1, 2]), ([], [0, 1, 2])],
)
def test_how_many_trials_are_shown(paceline, study, words, numbers):
    found = paceline("trials", study, "--json", *words).json
    assert [record["number"] for record in found] == numbers


def test_reading_writes_nothing(paceline, study):
    def state() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in Path().rglob("*") if p.is_file()}

    before = state()
    for command in ("best", "trials"):
        assert paceline(command, study).code == 0
    assert state() == before


def test_another_storage_can_be_read(paceline, study):
    done = paceline("best", study, "--storage", f"journal:runs/{study}/journal.log", "--json")
    assert done.json["number"] == 1


def test_a_study_without_a_complete_trial_says_how_to_go_on(paceline):
    study = Study("empty", direction="maximize")
    study.persist(META)
    study.close()
    done = paceline("best", "empty")
    assert done.code == 2
    said = "validated for an epoch yet. Resume with: paceline resume empty"
    assert said in done.err
    assert paceline("trials", "empty").code == 0
    assert paceline("trials", "empty", "--json").json == []


def test_export_copies_the_model(paceline, study, saved_model):
    Path("best.keras").write_bytes(b"an older one")
    done = paceline("export", study, "-o", "best.keras")
    assert done.code == 0
    assert Path("best.keras").read_bytes() == saved_model
    assert "best.keras: the model of trial 1, val_accuracy 0.7500" in done.out
    assert sorted(path.name for path in Path().iterdir()) == ["best.keras", "runs"]


def test_an_export_that_is_killed_leaves_the_older_file(
    paceline, study, saved_model, child_environment
):
    """At the last moment: all is copied."""
    Path("best.keras").write_bytes(b"an older one")
    dies = "os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, signal; {dies}; from paceline.cli.app import main; main()",
            *("export", study, "-o", "best.keras"),
        ],
        env=child_environment,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert Path("best.keras").read_bytes() == b"an older one"
    assert paceline("export", study, "-o", "best.keras").code == 0
    assert Path("best.keras").read_bytes() == saved_model


@pytest.mark.parametrize("damage", ["changed", "gone", "no manifest"])
def test_a_damaged_model_is_not_exported(paceline, study, saved_model, damage):
    model = Path("runs/digits/best/trial-1-epoch-1.keras")
    if damage == "changed":
        model.write_bytes(b"x" + saved_model[1:])
    elif damage == "gone":
        model.unlink()
    else:
        Path("runs/digits/best/manifest.json").unlink()
    done = paceline("export", study, "-o", "best.keras")
    assert done.code == 2
    assert "the model of trial 1 is missing in runs/digits/best, or was changed" in done.err
    assert not Path("best.keras").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("best.h5", "-o must end in .keras, got best.h5"),
        ("no/best.keras", "in an existing folder, got no/best.keras"),
        ("folder.keras", "-o must be a file, got the folder folder.keras"),
        (f"{'a' * 300}.keras", "cannot be written: File name too long"),
        (f"{'a' * 245}.keras", "cannot be written: File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(paceline, study, saved_model, output, message):
    Path("folder.keras").mkdir()
    done = paceline("export", study, "-o", output)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize("name", ["best/manifest.json", "journal.log", "pipe"])
def test_a_pipe_in_a_study_is_refused_and_not_waited_for(paceline, study, saved_model, name):
    path = Path("runs/digits") / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for words in (["export", study, "-o", "best.keras"], ["best", study], ["resume", study]):
        done = paceline(*words)
        assert done.code == 2
        assert f"{path} is neither a file nor a folder" in done.err


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (
            lambda: io.TextIOWrapper(io.FileIO("/dev/full", "w")),
            "cannot be written to stdout: No space left on device",
        ),
        (lambda: None, "cannot be printed: stdout is closed"),
    ],
)
@pytest.mark.parametrize("words", [["trials"], ["trials", "--csv"], ["best", "--json"]])
def test_a_stdout_that_takes_nothing(paceline, study, monkeypatch, stdout, why, words):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout())
        output.replace_closed_streams()
        done = paceline(words[0], study, *words[1:])
    assert done.code == 1
    assert done.err == f"paceline: failed: the result {why}\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("{command} trials digits >&-", 1, "the result cannot be printed: stdout is closed"),
        pytest.param(
            "{command} trials digits > /dev/full", 1, "No space left", marks=pytest.mark.slow
        ),
        pytest.param(
            "{command} --help > /dev/full", 1, "could not write to stdout", marks=pytest.mark.slow
        ),
        pytest.param("{command} trials digits 2>&- >&-", 1, "", marks=pytest.mark.slow),
        (
            "mkdir gone && cd gone && rmdir ../gone && {command} devices",
            2,
            "the working folder no longer exists",
        ),
    ],
)
def test_streams_and_folders_that_are_not_there(study, line, code, said):
    """In a real process, where what Python does at its end shows too."""
    command = f"{sys.executable} -c 'from paceline.cli.app import main; main()'"
    done = subprocess.run(
        ["sh", "-c", line.format(command=command)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said), "a traceback, or what Python says at exit"


def test_reading_loads_neither_jax_nor_keras(study, saved_model):
    code = (
        "import sys\n"
        "from paceline.cli.app import main\n"
        f"for words in (['best', {study!r}], ['trials', {study!r}], ['export', {study!r}]):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as stop:\n"
        "        assert not stop.code, stop.code\n"
        "heavy = {'jax', 'jaxlib', 'keras', 'tensorflow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
