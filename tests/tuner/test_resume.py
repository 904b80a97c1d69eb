"""Searches that stop, or are stopped, and go on as if they had not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.cli.app import main
from paceline.errors import BuildError, StorageError, StudyError
from paceline.executor.base import EpochReport
from paceline.executor.local import LocalExecutor
from paceline.executor.training.rounds import PackRounds
from paceline.tuner.checkpoint import files
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.checkpoint.files import SavePolicy
from paceline.tuner.search import timeouts
from paceline.tuner.search.checkpointer import SearchCheckpointer
from paceline.tuner.search.launcher import TrialLauncher
from paceline.tuner.search.progress import ProgressReporter
from paceline.tuner.search.timeouts import SearchTimeout
from stopping import all_of, by_epochs, hears_signals, same, stopped_after, times_out  # noqa: F401 - a fixture

TESTS = Path(__file__).resolve().parents[1]
X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "n_trials": 8}


def checkpoints() -> list[Path]:
    return sorted(Path("runs/s/checkpoints").glob("*.safetensors"))


def test_a_sampler_object_that_begins_anew_says_so_once(make, notes) -> None:
    storage = optuna.storages.InMemoryStorage()
    before = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    before.add_trial(optuna.trial.create_trial(value=0.5))
    make(sampler=optuna.samplers.CmaEsSampler(seed=0), storage=storage).search(
        X, Y, **{**CALL, "n_trials": 1}
    )
    (said,) = [note for note in notes if "CmaEsSampler" in note]
    assert said.startswith("sampler: CmaEsSampler restarts")


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 4])
def test_a_search_that_is_killed_ends_as_it_would_have(kills: int, child_environment) -> None:
    """The short form of ``make test-chaos``."""
    done = subprocess.run(
        [sys.executable, TESTS / "chaos.py", "asha-families", "--kills", str(kills)],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{kills} kills, 0 of 1 cases differ"


#: Commands of ``paceline``, one after the other in one process.
COMMANDS = """\
import sys
from paceline.cli.app import main

for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as stop:
        if stop.code:
            raise
"""


@pytest.mark.slow
def test_from_the_command_line(child_environment, fresh_folder, capsys) -> None:
    """SIGTERM, then ``paceline resume``: the same trials as without."""
    Path("model.py").write_text(toys.MODEL_FILE)
    python = [sys.executable, "-c", COMMANDS]
    environment = {**child_environment, "PACELINE_CHECKPOINT_SECONDS": "0"}
    search = "search model.py --trials 6 --epochs 30 --quiet --parallel-trials 2 --study"
    with subprocess.Popen(
        [*python, f"{search} s"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(1200):
            if checkpoints() and int(checkpoints()[-1].name[11:17]) >= 20:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 130, said
    assert "paceline resume s" in said
    assert checkpoints()
    # One process resumes it, and then runs the search that nothing disturbs.
    subprocess.run(
        [*python, "resume s --quiet", f"{search} whole"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    columns = []
    for name in ("whole", "s"):
        with pytest.raises(SystemExit, match="^0$"):
            main(["trials", name, "--csv"])
        columns.append(capsys.readouterr().out.splitlines())
    kept = ("number", "state", "value", "epochs", "seed", "dropout", "lr")
    whole, resumed = (
        [dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in rows[1:]]
        for rows in columns
    )
    assert [[row[name] for name in kept] for row in resumed] == [
        [row[name] for name in kept] for row in whole
    ]
    assert not checkpoints()


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_while_xla_compiles(signals: int, child_environment, fresh_folder) -> None:
    """Nothing interrupts a compile, and this one never ends: the process does all the same."""
    Path("model.py").write_text(
        f"{toys.MODEL_FILE}\nimport threading\nimport jax\n"
        "def compile(self, *arguments, **named):\n"
        "    open('compiling', 'w').close()\n"
        "    threading.Event().wait()\n"
        "jax.stages.Lowered.compile = compile\n"
    )
    python = [sys.executable, "-c", "from paceline.cli.app import main; main()"]
    search = ["search", "model.py", "--trials", "4", "--epochs", "2", "--study", "s"]
    with subprocess.Popen(
        [*python, *search], env=child_environment, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(1200):
            if Path("compiling").exists() and checkpoints():
                break
            time.sleep(0.05)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "stopping after this epoch; press Ctrl-C again to stop now" in said
    assert "paceline resume s" in said
    assert "Traceback" not in said
    assert checkpoints()


def test_a_snapshot_stays_as_it_was_taken(make, monkeypatch) -> None:
    """It is written by another thread, while the search goes on."""
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    save, taken = files.CheckpointManager.save, []

    def noted(self: files.CheckpointManager, snapshot: files.Snapshot) -> None:
        taken.append((snapshot, json.dumps(snapshot.facts)))
        save(self, snapshot)

    monkeypatch.setattr(files.CheckpointManager, "save", noted)
    make(pruner="asha").search(X, Y, **CALL)
    assert len(taken) > 5
    assert all(json.dumps(snapshot.facts) == text for snapshot, text in taken)


# -- stops that are meant --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGTERM)]
    + [signal.SIGHUP],
)
@pytest.mark.parametrize("plan", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)])
def test_a_signal_saves_and_the_next_search_goes_on(make, notes, number, plan, monkeypatch) -> None:
    whole = make(study="whole", plan=plan)
    whole.search(X, Y, **CALL)
    before = signal.getsignal(number)
    tuner = make(plan=plan)
    with monkeypatch.context() as patch:
        stopped_after(patch, 9, number)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **CALL)
    assert signal.getsignal(number) == before
    assert any(
        "unfinished trials, which the next search on this study continues" in note for note in notes
    )
    under_way = [t for t in tuner._require_study().trials if t.state == "running"]
    assert {trial.epochs for trial in under_way} == {0, 9 % 6}
    again = make(plan=plan)
    with monkeypatch.context() as patch:
        reports = observe_reports(patch)
        again.search(X, Y, **CALL)
    same(again, whole)
    trained = sum(trial.epochs for trial in whole._require_study().trials)
    slots = 2 if plan == "vectorized" else 1
    assert len(reports) == trained - 9 * slots  # no epoch was trained twice
    assert not checkpoints()


def test_the_second_signal_stops_at_once(make, monkeypatch) -> None:
    advance = LocalExecutor.advance

    def twice(self: LocalExecutor, *arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        advance(self, *arguments)

    whole = make(study="whole")
    whole.search(X, Y, **CALL)
    with monkeypatch.context() as patch:
        patch.setattr(LocalExecutor, "advance", twice)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, **CALL)
    again = make()
    again.search(X, Y, **CALL)
    same(again, whole)


def test_handlers_of_the_program_itself_stay(make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:

        def terminate(report: EpochReport) -> None:
            if not heard:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.MonkeyPatch.context() as patch:
            observe_reports(patch, before=terminate)
            make().search(X, Y, **CALL)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


@pytest.mark.slow
@pytest.mark.parametrize(
    "members", [pytest.param({"repeats": 2}, marks=pytest.mark.slow), {"folds": 3}]
)
@pytest.mark.parametrize("rounds", [pytest.param(3, marks=pytest.mark.slow), 5])
def test_members_of_trials_go_on_where_they_were(make, monkeypatch, members, rounds) -> None:
    """In four slots some are ahead, some wait for others, some have ended; none begins again."""
    call = {**CALL, "epochs": 3, "n_trials": 4, **members}
    if "folds" in members:
        del call["validation_data"]
    epochs = observe_reports(monkeypatch)
    whole = make(study="whole", parallel_trials=4)
    whole.search(X, Y, **call)
    trained = len(epochs)
    with monkeypatch.context() as patch:
        stopped_after(patch, rounds)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(parallel_trials=4).search(X, Y, **call)
    again = make(parallel_trials=4)
    again.search(X, Y, **call)
    same(again, whole)
    assert [again.trial(n).runs for n in range(4)] == [whole.trial(n).runs for n in range(4)]
    assert len(epochs) == 2 * trained


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_logs_of_trials_that_no_checkpoint_has_hold_each_epoch_once(
    make, monkeypatch, executor
) -> None:
    """As after a kill: trials that began after the last checkpoint come again, with their files."""
    log = keras.callbacks.CSVLogger("log.csv", append=True)
    call = {**CALL, "epochs": 3, "n_trials": 6, "callbacks": [log]}
    saved, save = [0], SearchCheckpointer.save

    def save_once(self: SearchCheckpointer) -> None:
        saved[0] += 1
        if saved[0] == 1:
            save(self)

    with monkeypatch.context() as patch:
        patch.setattr(SavePolicy, "due", property(lambda self: saved[0] < 1))
        patch.setattr(SearchCheckpointer, "save", save_once)
        stopped_after(patch, 5) if executor == "auto" else observe_reports(patch, before=_interrupt)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(parallel_trials=2, executor=executor).search(X, Y, **call)
    logs = sorted(Path("runs/s/trials").glob("*/log.csv"))
    begun = {path.parent.name: len(path.read_text().splitlines()) for path in logs}
    assert saved[0] > 1 and len(begun) > 2, "some began after the checkpoint"
    make(parallel_trials=2, executor=executor).search(X, Y, **call)
    for number in range(6):
        lines = Path(f"runs/s/trials/{number}/log.csv").read_text().splitlines()
        assert [line.partition(",")[0] for line in lines] == ["epoch", "0", "1", "2"], begun


def _interrupt(report: EpochReport) -> None:
    if (report.number, report.epoch) == (3, 2):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_trial_whose_members_begin_again_and_cannot_be_built_fails(
    make, notes, monkeypatch
) -> None:
    """Its model was changed while the search stood, and a second build of it raises."""
    call = {**CALL, "epochs": 3, "n_trials": 2, "repeats": 2}
    with monkeypatch.context() as patch:
        stopped_after(patch, 2)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(lambda hp: toys.dense_with(hp, "relu"), parallel_trials=4).search(X, Y, **call)
    again, raises = TrialLauncher.resubmit, set()

    def resubmit(self: TrialLauncher, number: int) -> None:
        again(self, number)
        raises.add(number)  # the next time

    def changed(hp: Any) -> keras.Model:
        if raises == {0, 1}:
            raise ValueError("no more memory")
        return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    monkeypatch.setattr(TrialLauncher, "resubmit", resubmit)
    found = make(changed, parallel_trials=4)
    with pytest.raises(BuildError, match="no more memory"):
        found.search(X, Y, **call)
    assert any("unfinished trials restart: the step of their model" in note for note in notes)
    assert [found.trial(number).state for number in range(2)] == ["failed", "failed"]


class Counts(keras.callbacks.Callback):
    """Acts on batches, and moves the weights by what it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.batches, self.sums = 0, np.zeros(2)
        self.lock = object()

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.trainable_variables[-1].assign_add(np.ones(toys.CLASSES))  # once, and not again

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.sums = self.sums + np.array([logs["loss"], 1.0])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        bias = self.model.trainable_variables[-1]
        bias.assign(bias + 1e-3 * self.batches + 1e-3 * self.sums[0])
        logs["counted"] = float(self.sums.sum())


def averaged(hp: Any) -> Any:
    """As ``toys.dense``, with weights that ``fit`` makes averages of at its end."""
    model = toys.dense(hp)
    optimizer = keras.optimizers.SGD(hp.get("lr"), momentum=0.5, use_ema=True, ema_momentum=0.7)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def given() -> list[Any]:
    return [
        Counts(),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]


@pytest.mark.parametrize(
    ("stop", "callbacks", "build"),
    [
        pytest.param(2, None, toys.dense, marks=pytest.mark.slow),
        pytest.param(5, None, averaged, marks=pytest.mark.slow),
        pytest.param(2, given, toys.dense, marks=pytest.mark.slow),
        (5, given, averaged),
    ],
)
def test_trials_in_fit_go_on_where_they_were(
    make, notes, monkeypatch, stop, callbacks, build
) -> None:
    """Weights, optimizer, dropout, order of examples and callbacks: to the bit, no epoch twice."""
    call = {**CALL, "epochs": 4, "n_trials": 2}

    def interrupt(report: EpochReport) -> None:
        if len(epochs) == left[0]:
            os.kill(os.getpid(), signal.SIGINT)

    def search(tuner: paceline.Tuner) -> None:
        tuner.search(X, Y, **call, **({"callbacks": callbacks()} if callbacks else {}))

    epochs = observe_reports(monkeypatch, before=interrupt)
    left = [0]
    whole = make(build, study="whole", executor="fit")
    search(whole)
    trained = len(epochs)
    left[0] = trained + stop
    with pytest.raises(KeyboardInterrupt, match="^$"):
        search(make(build, executor="fit"))
    assert len(epochs) == left[0]
    again = make(build, executor="fit")
    search(again)
    same(again, whole)
    assert len(epochs) == 2 * trained
    if callbacks:
        for number in "01":
            logs = [Path("runs", s, "trials", number, "log.csv") for s in ("s", "whole")]
            assert logs[0].read_text() == logs[1].read_text()
        said = [note for note in notes if "checkpoints do not contain lock of Counts" in note]
        assert len(said) == 2  # once in each search that took a checkpoint


class Draws(keras.callbacks.Callback):
    """What it does depends on the history, and on numbers that it draws."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        losses = self.model.history.history.get("loss", [])
        drawn = np.random.random() + random.random() + float(keras.random.uniform(()))
        self.model.optimizer.learning_rate.assign(0.01 * drawn + 0.01 * sum(losses))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = float(np.asarray(self.model.optimizer.learning_rate))
        logs["known"] = float(len(self.model.history.epoch))


@pytest.mark.slow
def test_in_fit_the_history_and_random_numbers_go_on(make, monkeypatch) -> None:
    def interrupt(report: EpochReport) -> None:
        if len(epochs) == left[0]:
            os.kill(os.getpid(), signal.SIGINT)

    call = {**CALL, "epochs": 4, "n_trials": 1, "callbacks": Draws()}
    epochs, left = observe_reports(monkeypatch, before=interrupt), [0]
    whole = make(toys.dense, study="whole", executor="fit")
    whole.search(X, Y, **call)
    left[0] = len(epochs) + 2
    with pytest.raises(KeyboardInterrupt, match="^$"):
        make(toys.dense, executor="fit").search(X, Y, **call)
    again = make(toys.dense, executor="fit")
    again.search(X, Y, **call)
    same(again, whole)
    assert again.history(0)["known"] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_model_in_fit_that_has_changed_fails_and_says_why(make, monkeypatch) -> None:
    def changed(hp: Any) -> Any:
        hp.Float("dropout", 0.1, 0.5)
        return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    def interrupt(report: EpochReport) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        observe_reports(patch, before=interrupt)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(executor="fit").search(X, Y, **(CALL | {"n_trials": 2}))
    again = make(changed, executor="fit")
    again.search(X, Y, **(CALL | {"n_trials": 2}))
    assert again.results()["state"].tolist() == ["failed", "complete"]
    assert "its model has changed since the search stopped" in again.trial(0).error


@pytest.mark.slow
@pytest.mark.parametrize("compile_number", [1, 2])
def test_a_signal_while_a_program_is_compiled(make, monkeypatch, compile_number) -> None:
    """The round is broken off while trials are asked for; the next search ends as it would have."""

    def build(hp: Any) -> Any:
        return toys.dense_with(hp, hp.Choice("act", ["relu", "elu", "tanh"]))

    # Together, the activations are one program.
    settings: dict[str, Any] = {"build": build, "sampler": "tpe", "share_widths": False}
    call = {**CALL, "n_trials": 20, "epochs": 2}
    whole = make(study="whole", **settings)
    whole.search(X, Y, **call)
    wait = PackRounds._wait_for

    seen: set[int] = set()

    def signalled(self: PackRounds, program: Any, meanwhile: Any) -> None:
        seen.add(id(program))
        if len(seen) == compile_number:
            self.compiling = True
            meanwhile()
            os.kill(os.getpid(), signal.SIGINT)
            meanwhile()
        wait(self, program, meanwhile)

    with monkeypatch.context() as patch:
        patch.setattr(PackRounds, "_wait_for", signalled)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(**settings).search(X, Y, **call)
    again = make(**settings)
    again.search(X, Y, **call)
    same(again, whole)


@pytest.mark.slow
def test_a_timeout_saves(make, monkeypatch) -> None:
    """A search that time may end has rules of its own: the whole one has them, too."""
    whole = make(study="whole")
    whole.search(X, Y, timeout=1000.0, **CALL)
    rounds = [0]
    advance = LocalExecutor.advance

    def counted(self: LocalExecutor, *arguments: Any) -> None:
        rounds[0] += 1
        advance(self, *arguments)

    with monkeypatch.context() as patch:
        by_epochs(patch)
        patch.setattr(LocalExecutor, "advance", counted)
        times_out(patch, lambda: rounds[0] >= 9)
        tuner = make()
        tuner.search(X, Y, timeout=1000.0, **CALL)
    assert "running" in tuner.results()["state"].tolist()
    assert checkpoints()
    again = make()
    again.search(X, Y, timeout=1000.0, **CALL)
    same(again, whole)


def test_time_is_left_for_the_last_round(make, monkeypatch) -> None:
    """With 1 s in all, no round begins after 0.7 s where the last one took 0.3 s."""
    now = 100.0
    with monkeypatch.context() as patch:
        patch.setattr(timeouts, "time", SimpleNamespace(perf_counter=lambda: now))
        limit = SearchTimeout(1.0)
        now = 100.9
        assert not limit.over
        limit.round_took(0.3)
        assert limit.over
        now = 100.69
        assert not limit.over
        assert not SearchTimeout(None).over

    told: list[float] = []
    monkeypatch.setattr(SearchTimeout, "round_took", lambda self, seconds: told.append(seconds))
    tuner = make()
    tuner.search(X, Y, timeout=1000.0, **CALL)
    assert len(told) >= 4
    assert 0.0 < sum(told) < tuner.summary()["seconds"]["total"]


def test_a_search_closes_when_a_new_trial_would_have_no_epoch_in_time(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(timeouts, "time", SimpleNamespace(perf_counter=lambda: now))
    limit, without = SearchTimeout(60.0), SearchTimeout(None)
    for number, begun, first in ((0, 0.0, 30.0), (1, 10.0, 14.0), (2, 20.0, 25.0)):
        now = begun
        limit.trial_begins(number)
        now = first
        limit.trial_has_epoch(number)
        limit.trial_has_epoch(number)  # its later epochs count no more
    now = 54.9
    assert not limit.closing
    now = 55.1  # the median is 5 s
    assert limit.closing
    assert not without.closing


def test_half_of_the_time_is_left_for_new_structures(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(timeouts, "time", SimpleNamespace(perf_counter=lambda: now))
    limit, without = SearchTimeout(60.0), SearchTimeout(None)
    found = []
    for seconds in (100.0, 129.9, 130.1, 170.0):
        now = seconds
        found.append((limit.late, without.late))
    assert found == [(False, False), (False, False), (True, False), (True, False)]


# -- what a checkpoint is good for -----------------------------------------------------------------


def interrupted(make: Any, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> paceline.Tuner:
    tuner = make(**arguments)
    with monkeypatch.context() as patch:
        stopped_after(patch, 9)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **CALL)
    return tuner


@pytest.mark.slow
def test_a_damaged_checkpoint_is_said_and_the_one_before_taken(make, notes, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    whole = make(study="whole")
    whole.search(X, Y, **CALL)
    interrupted(make, monkeypatch)
    older, newest = checkpoints()
    newest.write_bytes(newest.read_bytes()[:-100])
    again = make()
    again.search(X, Y, **CALL)
    assert any("is damaged: using the one before" in note for note in notes)
    assert not any("no checkpoint in" in note for note in notes)
    same(again, whole)
    assert not older.exists()


@pytest.mark.slow
def test_two_damaged_checkpoints_are_each_said_once(make, notes, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    interrupted(make, monkeypatch)
    for path in checkpoints():
        path.write_bytes(path.read_bytes()[:-100])
    again = make()
    again.search(X, Y, **CALL)
    assert again.results()["state"].tolist().count("complete") == 8
    assert len([note for note in notes if "is damaged: " in note]) == 2


@pytest.mark.slow
def test_a_folder_of_another_name_is_left_as_it_is(make, monkeypatch) -> None:
    """A study began beside the one that is in it, and took its checkpoint and its models away."""
    interrupted(make, monkeypatch)
    Path("runs/s").rename("runs/t")
    before = {path: path.read_bytes() for path in Path("runs/t").rglob("*") if path.is_file()}
    for ask in (lambda: make(study="t").search(X, Y, **CALL), make(study="t").results):
        with pytest.raises(StudyError, match="holds the study 's'. Was the fold"):
            ask()
    after = {path: path.read_bytes() for path in Path("runs/t").rglob("*") if path.is_file()}
    assert after == before
    Path("elsewhere").mkdir()
    Path("runs/t").rename("elsewhere/s")
    again = make(directory="elsewhere")
    again.search(X, Y, **CALL)
    assert again.results()["state"].tolist() == ["complete"] * 8


@pytest.mark.slow
def test_a_journal_that_was_cut_in_half_leaves_a_study_that_is_whole(make, monkeypatch) -> None:
    # That the first search has left is in the other half: the second watches for its beats.
    monkeypatch.setenv("PACELINE_HEARTBEAT_SECONDS", "0.2")
    make().search(X, Y, **CALL)
    journal = Path("runs/s/journal.log")
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    again = make()
    again.search(X, Y, **CALL)
    assert again.results()["state"].tolist().count("complete") == 8
    score = again.best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert score["accuracy"] == pytest.approx(again.best_trial.value, abs=1e-6)
    assert len(list(Path("runs/s").glob("journal.log.cut-*"))) == 1


@pytest.mark.slow
def test_without_a_checkpoint_trials_are_tried_again(make, notes, monkeypatch) -> None:
    interrupted(make, monkeypatch)
    assert not any("no checkpoint in" in note for note in notes)
    for path in checkpoints():
        path.unlink()
    again = make()
    again.search(X, Y, **CALL)
    (said,) = (note for note in notes if "no checkpoint in runs/s/checkpoints" in note)
    assert "6 unfinished trials restart as new trials. Finished trials are kept" in said
    states = again.results()["state"].tolist()
    assert states.count("complete") == 8
    assert states.count("failed") == 6  # two in slots, and those that waited
    assert {again.trial(n).error for n, state in enumerate(states) if state == "failed"} == {
        "interrupted"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"epochs": 7}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 8}, marks=pytest.mark.slow),
        {"shuffle": False},
    ],
)
def test_another_call_does_not_go_on_with_it(make, notes, other, monkeypatch) -> None:
    interrupted(make, monkeypatch)
    again = make()
    again.search(X, Y, **(CALL | other))
    assert again.results()["state"].tolist().count("failed") == 6
    (name,) = other
    assert any(f"({name}): " in note and "restart as new trials" in note for note in notes)


@pytest.mark.slow
def test_more_trials_may_be_asked_for(make, monkeypatch) -> None:
    whole = make(study="whole")
    whole.search(X, Y, **(CALL | {"n_trials": 12}))
    interrupted(make, monkeypatch)
    again = make()
    again.search(X, Y, **(CALL | {"n_trials": 12}))
    assert again.results()["state"].tolist() == ["complete"] * 12
    same(again, whole)


@pytest.mark.slow
def test_a_model_that_has_changed_begins_again(make, notes, monkeypatch) -> None:
    def narrow(hp: Any) -> Any:
        hp.Float("dropout", 0.1, 0.5)
        return toys.softmax() if hp.Float("lr", 1e-3, 1e-1, sampling="log") else None

    interrupted(make, monkeypatch)
    again = make(narrow)
    again.search(X, Y, **CALL)
    assert again.results()["state"].tolist() == ["complete"] * 8
    assert any("unfinished trials restart" in note for note in notes)
    assert all(len(again.history(n)["loss"]) == 6 for n in range(8))


@pytest.mark.slow
def test_another_number_of_lanes_keeps_the_trials(make, monkeypatch) -> None:
    """As on a machine with other cores: the trials go on, in slots of their own."""
    from paceline.executor.training import planner

    whole = make(study="whole", parallel_trials="auto")
    whole.search(X, Y, **CALL)
    monkeypatch.setattr(planner, "cores", lambda: 2)
    tuner = make(parallel_trials="auto")
    with monkeypatch.context() as patch:
        stopped_after(patch, 3)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **CALL)
    monkeypatch.setattr(planner, "cores", lambda: 1)
    again = make(parallel_trials="auto")
    again.search(X, Y, **CALL)
    for number in range(8):
        for name, values in whole.history(number).items():
            # Other slot counts change the order of sums.
            np.testing.assert_allclose(again.history(number)[name], values, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_programs_that_have_become_one(make, notes, monkeypatch) -> None:
    def build(hp: Any) -> Any:
        act = hp.Choice("act", ["relu", "elu"])
        return toys.softmax() if same else toys.dense_with(hp, act)

    same = False
    interrupted(make, monkeypatch, build=build)
    same = True
    again = make(build)
    again.search(X, Y, **CALL)
    assert again.results()["state"].tolist() == ["complete"] * 8
    assert all(len(again.history(n)["loss"]) == 6 for n in range(8))


@pytest.mark.slow
def test_the_best_model_is_not_lost_when_it_cannot_be_saved(make, notes, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(BestModels, "save", full)
        with pytest.raises(StorageError, match=r"No space left.*Free some space and run the same"):
            make().search(X, Y, **CALL)
    assert sum("the search continues and will try again" in note for note in notes) == 1
    assert checkpoints()
    again = make()
    again.search(X, Y, **CALL)
    loss = again.best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert loss["accuracy"] == pytest.approx(again.best_trial.value, abs=1e-5)


@pytest.mark.slow
def test_values_enqueued_before_going_on_come_later(make, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "1000")
    tuner = make()
    with monkeypatch.context() as patch:
        patch.setattr(ProgressReporter, "show", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **CALL)
    again = make()
    again.enqueue({"lr": 0.0123, "dropout": 0.321})
    again.search(X, Y, **(CALL | {"n_trials": 12}))
    given = {"lr": 0.0123, "dropout": 0.321}
    assert [t.hparams for t in again._require_study().trials].count(given) == 1


@pytest.mark.slow
def test_the_same_script_enqueues_once_and_adds_once(make, monkeypatch) -> None:
    call = {**CALL, "n_trials": "+8"}
    whole = make(study="whole")
    whole.enqueue({"dropout": 0.25})
    whole.search(X, Y, **call)
    tuner = make()
    tuner.enqueue({"dropout": 0.25})
    with monkeypatch.context() as patch:
        stopped_after(patch, 9)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **call)
    again = make()
    again.enqueue({"dropout": 0.25})
    again.search(X, Y, **call)
    same(again, whole)


@pytest.mark.slow
def test_a_build_that_is_mended_goes_on_after_what_failed(make) -> None:
    def build(hp: Any) -> Any:
        if broken:
            hp.Float("dropout", 0.1, 0.5)
            raise ValueError("a typo")
        return toys.dense(hp)

    broken = False
    make(build).search(X, Y, **(CALL | {"n_trials": 2}))
    broken = True
    with pytest.raises(paceline.BuildError, match="a typo"):
        make(build).search(X, Y, **(CALL | {"n_trials": 10}))
    broken = False
    again = make(build)
    again.search(X, Y, **(CALL | {"n_trials": 10}))
    states = again.results()["state"].tolist()
    assert states == make(build).results()["state"].tolist()  # as the storage has it
    assert "running" not in states
    again.best_model()


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [pytest.param({"epochs": np.int64(6)}, marks=pytest.mark.slow), {"shuffle": np.bool_(True)}],
)
def test_numbers_of_numpy_are_as_good(make, other, monkeypatch) -> None:
    tuner = make()
    with monkeypatch.context() as patch:
        stopped_after(patch, 9)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, **(CALL | other))
    assert checkpoints()
    again = make()
    again.search(X, Y, **(CALL | other))
    assert again.results()["state"].tolist() == ["complete"] * 8


@pytest.mark.slow
def test_a_checkpoint_of_another_session_is_not_used(make, monkeypatch) -> None:
    """The study went on elsewhere, and came back."""
    storage = "journal:shared.log"
    interrupted(make, monkeypatch, storage=storage)
    make(storage=storage, directory="elsewhere").search(X, Y, **CALL)
    back = make(storage=storage)
    back.search(X, Y, **CALL)
    states = back.results()["state"].tolist()
    assert states.count("complete") == 8
    assert "running" not in states
    assert states == make(storage=storage).results()["state"].tolist()


@pytest.mark.slow
def test_after_a_timeout_all_that_has_ended_is_shown(make, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "1000")
    with monkeypatch.context() as patch:
        reports: list[EpochReport] = []

        def interrupt(report: EpochReport) -> None:
            if len(reports) > 14:
                raise KeyboardInterrupt

        reports = observe_reports(patch, before=interrupt)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, **CALL)
    ended = make().results()["state"].tolist().count("complete")
    assert ended >= 1
    again = make()
    with monkeypatch.context() as patch:
        times_out(patch, lambda: True)
        again.search(X, Y, timeout=100.0, **CALL)
    assert again.results()["state"].tolist().count("complete") == ended
    make().search(X, Y, **CALL)
    assert make().results()["state"].tolist() == ["complete"] * 8


@pytest.mark.slow
def test_states_too_large_for_the_host_are_left_out(make, notes, monkeypatch) -> None:
    from paceline.tuner.search import checkpointer as search_state

    whole = make(study="whole")
    whole.search(X, Y, **CALL)
    with monkeypatch.context() as patch:
        patch.setattr(search_state, "host_bytes", lambda: 1.0)
        interrupted(make, patch)
    assert sum("checkpoints omit the variables" in note for note in notes) == 1
    again = make()
    again.search(X, Y, **CALL)
    same(again, whole)  # from the first epoch again, with the same numbers and seeds


def test_nothing_is_lost_where_checkpoints_cannot_be_written(make, notes) -> None:
    Path("runs/s").mkdir(parents=True)
    Path("runs/s/checkpoints").write_text("in the way")
    tuner = make()
    tuner.search(X, Y, **CALL)
    assert tuner.results()["state"].tolist() == ["complete"] * 8
    assert any("could not write a checkpoint" in note for note in notes)
