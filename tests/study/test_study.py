import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from as_optuna import optuna_study
from paceline.errors import StorageError, StudyError
from paceline.search_space import HyperParameters
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.study import Study
from paceline.study.trials.trial import INTERRUPTED
from study.builds import build


def new(name="s", **arguments) -> Study:
    return Study(name, **({"direction": "maximize"} | arguments))


def begin(study, build=build) -> int:
    proposal, hp, _ = study.asker.propose(build)
    study.persist({})
    return study.accept(proposal, hp)


# Names, directions, arguments


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a/b",
        "/a",
        "..",
        "a..b",
        "a\\b",
        ".hidden",
        "a\nb",
        "a\x00",
        " a",
        "a" * 129,
        7,
        None,
    ],
)
def test_a_study_name_is_a_plain_name(name):
    with pytest.raises(StudyError, match="study name must"):
        new(name)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["digits", "my study 3", "étude", "a.b-c_d", "a" * 128])
def test_plain_names_are_taken(name):
    study = new(name)
    study.persist({})
    study.close()
    assert (Path("runs") / name / "journal.log").is_file()


def test_another_direction_than_the_stored_one_is_refused():
    study = new()
    study.persist({})
    with pytest.raises(StudyError, match="stored with direction maximize, not minimize"):
        new(direction="minimize")
    assert new(direction=None).trials.direction == "maximize"


def test_the_direction_may_come_after_the_first_build():
    study = new(direction=None)
    proposal, hp, _ = study.asker.propose(build)
    assert study.trials.direction is None
    study.trials.set_direction("minimize")
    study.persist({})
    number = study.accept(proposal, hp)
    study.updates.report(number, 1, {"loss": 2.0}, 2.0)
    study.updates.report(number, 2, {"loss": 3.0}, 3.0)
    study.updates.finish(number, "complete")
    assert (study.trials.best.value, study.trials.best.best_epoch) == (2.0, 1)
    with pytest.raises(StudyError, match="not maximize"):
        study.trials.set_direction("maximize")


def test_a_format_of_another_version_is_refused():
    study = new()
    study.persist({})
    study.close()
    log = Path("runs/s/journal.log")
    text = log.read_text()
    log.write_text(text.replace('"format":3', '"format":4'))
    with pytest.raises(StudyError, match="in format 4 by a newer Paceline.*pip install"):
        new()
    log.write_text(text.replace('"format":3', '"format":2'))
    with pytest.raises(StudyError, match="in format 2 by an older Paceline.*another study name"):
        new()
    log.write_text(text.replace('"space":[]', '"space":[1]'))
    with pytest.raises(StorageError, match=r"line 2 .*space\[0\] is 1: expected object"):
        new()


# What is written, and when


def test_nothing_is_written_before_persist():
    study = new()
    proposal, hp, _ = study.asker.propose(build)
    study.accept(proposal, hp)
    study.updates.finish(0, "failed", attrs={"error": "first build"})
    study.writer.flush()
    assert list(Path().iterdir()) == []
    assert not study.exists

    study.persist({"objective": "val_accuracy"})
    study.close()
    again = new()
    assert again.exists
    assert again.trials.by_number(0).error == "first build"


@pytest.mark.parametrize("storage", [None, "journal:elsewhere/s.log", "sqlite:///s.db"])
def test_all_that_a_trial_is_comes_back(storage, run_trials):
    study = new(storage=storage)
    run_trials(study, 3, epochs=3)
    running = begin(study)
    study.updates.annotate(running, plan="sequential", program_id="f00d", why="no dropout")
    study.updates.report(running, 1, {"loss": 1.0}, 0.5)
    pruned = begin(study)
    study.updates.report(pruned, 1, {"loss": 1.0}, 0.25)
    study.updates.finish(pruned, "pruned")
    failed = begin(study)
    study.updates.report(failed, 1, {"loss": 1.0}, 0.125)
    study.updates.finish(failed, "failed", attrs={"error": "loss is not finite in epoch 2"})
    study.close()

    again = Study("s", storage=storage)
    assert again.exists and again.trials.direction == "maximize"
    for before, after in zip(study.trials, again.trials, strict=True):
        if before.number == running:
            assert after.state == "running"
            assert (after.plan, after.program_id, after.seed) == ("sequential", "f00d", before.seed)
            assert (after.hparams, after.epochs) == (before.hparams, 1)
        else:
            assert after == before
    assert again.trials.best.number == study.trials.best.number
    assert again.trials.best.value == study.trials.best.value
    assert again.metadata.space.to_json() == study.metadata.space.to_json()
    assert [list(trial.hparams) for trial in again.trials] == [
        list(trial.hparams) for trial in study.trials
    ]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")  # Optuna 4
def test_optuna_sees_ordinary_trials(run_trials):
    study = new()
    found = run_trials(study, 12, epochs=3)
    loaded = optuna_study("s")
    assert loaded.direction.name == "MAXIMIZE"
    assert loaded.user_attrs["paceline"]["objective"] == "val_accuracy"
    for number, (trial, hparams) in enumerate(zip(loaded.trials, found, strict=True)):
        ours = study.trials.by_number(number)
        assert trial.state == TrialState.COMPLETE
        assert trial.value == ours.value == max(trial.intermediate_values.values())
        assert list(trial.intermediate_values) == [1, 2, 3]
        assert trial.user_attrs["hparams"] == hparams
        assert trial.user_attrs["history"]["val_accuracy"] == list(
            trial.intermediate_values.values()
        )
        assert trial.user_attrs["seed"] == ours.seed
        assert set(trial.distributions) == set(trial.params)
    assert loaded.best_trial.number == study.trials.best.number
    assert optuna.importance.get_param_importances(
        loaded, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )


def test_optuna_may_go_on_with_a_study_and_paceline_after_it(run_trials):
    run_trials(new(), 2)
    loaded = optuna_study("s")
    loaded.sampler = optuna.samplers.RandomSampler(seed=0)
    loaded.enqueue_trial({"units": 8})  # waits, and has number 2
    trial = loaded.ask(
        {
            "units": optuna.distributions.IntDistribution(8, 64, step=8),
            "other": optuna.distributions.FloatDistribution(0, 1),
        }
    )
    loaded.tell(trial, 0.75)
    loaded.enqueue_trial({"units": 16})

    study = new()
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert study.trials.by_number(2).hparams["units"] == 8
    assert study.trials.best.number == 2
    run_trials(study, 1)
    assert [trial.number for trial in study.trials] == [0, 1, 2, 4]
    assert [t.state.name for t in optuna_study("s").trials][3:] == ["WAITING", "COMPLETE"]


def test_the_space_is_stored_as_it_grows():
    def growing(hp, proposal):
        hp.Choice(f"name{proposal.number}", [1, 2])

    study = new()
    for _ in range(3):
        begin(study, growing)
    study.writer.flush()
    assert list(new().metadata.space.parameters) == ["name0", "name1", "name2"]
    assert new().metadata.meta["format"] == 3


def test_meta_is_replaced_by_later_calls():
    study = new()
    study.persist({"objective": "val_loss", "search": {"epochs": 3, "path": Path("a.py")}})
    study.persist({"objective": "val_loss", "search": {"epochs": np.int64(5)}})
    study.writer.flush()
    meta = new().metadata.meta
    assert meta["search"] == {"epochs": 5}
    assert (meta["format"], meta["space"]) == (3, [])


# Reports and ends


def test_histories_keep_their_epochs():
    study = new()
    number = begin(study)
    study.updates.report(number, 1, {"loss": 1.0, "accuracy": np.float32(0.5)}, 0.5)
    study.updates.report(number, 2, {"loss": 2.0}, None)
    study.updates.report(number, 3, {"loss": math.inf, "late": 7}, 0.25)
    history = study.trials.by_number(number).history
    assert history["loss"] == [1.0, 2.0, math.inf]
    assert history["accuracy"][0] == 0.5 and all(map(math.isnan, history["accuracy"][1:]))
    assert all(map(math.isnan, history["late"][:2])) and history["late"][2] == 7.0

    # An epoch that is trained again, after a restart from a checkpoint, replaces what was.
    study.updates.report(number, 2, {"loss": 2.5, "accuracy": 0.75, "late": 1}, 0.75)
    assert history == {"loss": [1.0, 2.5], "accuracy": [0.5, 0.75], "late": [history["late"][0], 1]}
    study.updates.finish(number, "complete")
    study.close()
    trial = Study("s").trials.by_number(number)
    assert trial.history["loss"] == [1.0, 2.5]
    assert math.isnan(trial.history["late"][0])
    assert (trial.value, trial.best_epoch, trial.epochs) == (0.75, 2, 2)


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_trial_without_a_number_for_a_value_has_failed(value):
    study = new()
    number = begin(study)
    study.updates.report(number, 1, {"loss": math.nan}, value)
    study.updates.finish(number, "complete")
    trial = study.trials.by_number(number)
    assert (trial.state, trial.value) == ("failed", None)
    assert trial.error == "the objective was not a number in any epoch"
    assert study.trials.best is None
    study.close()
    again = Study("s").trials.by_number(number)
    assert again.state == "failed" and math.isnan(again.history["loss"][0])


def test_the_best_is_the_first_of_equals_and_has_not_failed():
    study = new()
    for value, state in [(1.0, "complete"), (2.0, "pruned"), (2.0, "complete"), (9.0, "failed")]:
        study.updates.finish(begin(study), state, value=value)
    running = begin(study)
    assert study.trials.best.number == 1
    study.updates.report(running, 1, {}, 3.0)
    assert study.trials.best.number == running


def test_what_is_over_cannot_be_told_again():
    study = new()
    number = begin(study)
    with pytest.raises(ValueError, match="got 'paused'"):
        study.updates.finish(number, "paused")
    study.updates.finish(number, "complete", value=1.0)
    for call in (
        lambda: study.updates.finish(number, "complete"),
        lambda: study.updates.report(number, 1, {}, 1.0),
        lambda: study.updates.annotate(number, plan="fit"),
    ):
        with pytest.raises(RuntimeError, match="trial 0 is not running here"):
            call()
    with pytest.raises(StudyError, match='study "s" has no trial 5: the last is 0'):
        study.trials.by_number(5)
    with pytest.raises(StudyError, match="it has no trials yet"):
        new("t").trials.by_number(0)


def test_a_draft_is_accepted_once():
    study = new()
    proposal = study.proposer.ask(0)
    hp = HyperParameters(chooser=proposal.choose)
    build(hp)
    assert (proposal.number, study.accept(proposal, hp)) == (0, 0)
    with pytest.raises(RuntimeError, match="not the last one asked for"):
        study.accept(proposal, hp)
    assert study.proposer.ask(0).number == 1


# Interruptions


def killed(run_trials) -> Study:
    """A study whose process died with trials 2 and 3 running."""
    study = new()
    run_trials(study, 2)
    begin(study)
    begin(study)
    study.updates.report(3, 1, {"loss": 1.0}, 0.5)
    study.writer.flush()
    return study


def test_interrupted_trials_are_failed_and_tried_again_first(run_trials):
    dead = killed(run_trials)
    study = new(seed=1)
    assert [trial.state for trial in study.trials][2:] == ["running", "running"]
    assert [t.state.name for t in optuna_study("s").trials][2:] == ["RUNNING", "RUNNING"]

    found = run_trials(study, 3)
    assert found[:2] == [dead.trials.by_number(2).hparams, dead.trials.by_number(3).hparams]
    assert [(trial.state, trial.error) for trial in study.trials][2:] == [
        ("failed", INTERRUPTED),
        ("failed", INTERRUPTED),
        ("complete", None),
        ("complete", None),
        ("complete", None),
    ]
    assert [t.state.name for t in optuna_study("s").trials][2:4] == ["FAIL", "FAIL"]
    again = new()
    assert [trial.error for trial in again.trials] == [None, None, INTERRUPTED, INTERRUPTED] + [
        None
    ] * 3
    assert run_trials(again, 1)[0] not in found


def test_reading_a_study_that_another_process_searches_changes_nothing(run_trials):
    killed(run_trials)
    before = Path("runs/s/journal.log").read_bytes()
    reader = new()
    assert len(reader.trials) == 4 and reader.trials.best is not None
    reader.close()
    assert Path("runs/s/journal.log").read_bytes() == before


def test_an_interrupted_trial_that_build_no_longer_knows_is_passed_over(run_trials):
    killed(run_trials)
    notes = []
    study = new(note=notes.append)
    found = run_trials(study, 6, small_build_with_other_units)
    assert len(found) == 6 and len(notes) == 2
    assert all("skipped a trial that was interrupted" in note for note in notes)


def small_build_with_other_units(hp, proposal):
    hp.Choice("width", ["1", "2", "3", "4", "5", "6", "7", "8"])
    hp.Choice("kind", ["dense", "conv"])
    if proposal.values:
        hp.Int("units", 100, 200)
    return dict(hp.hparams)


# Storage that fails


def test_training_goes_on_without_a_storage_and_the_end_says_so(run_trials, monkeypatch):
    monkeypatch.setattr(WriteBehind, "PATIENCE", 0.0)
    study = new()
    run_trials(study, 1)
    Path("runs/s/journal.log").unlink()
    number = begin(study)
    with pytest.raises(
        StorageError, match=r"journal:runs/s/journal.log cannot be written: .* truncated"
    ):
        study.writer.flush()
    study.updates.report(number, 1, {"loss": 1.0}, 1.0)
    with pytest.raises(StorageError, match="truncated or removed"):
        study.close()
    assert study.trials.by_number(number).epochs == 1  # what was trained is still to be read


def test_close_may_be_called_at_any_time(run_trials):
    new().close()
    study = new()
    run_trials(study, 1)
    number = begin(study)
    study.close()
    study.close()
    assert len(study.trials) == 2
    with pytest.raises(RuntimeError, match="the study is closed. Open it again"):
        study.updates.report(number, 1, {"loss": 1.0}, 1.0)


def test_a_study_that_nobody_closes_is_written_all_the_same():
    study = new()
    begin(study)
    threads = threading.active_count()
    del study
    assert threading.active_count() < threads
    assert len(new().trials) == 1


PROGRAM = """
import os, signal
from paceline.study.study import Study

study = Study("s", direction="maximize")
for _ in range(20):
    proposal, hp, _ = study.asker.propose(lambda hp, proposal: hp.Float("rate", 0.0, 1.0))
    study.persist({})
    number = study.accept(proposal, hp)
    for epoch in range(1, 4):
        study.updates.report(number, epoch, {"loss": 1.0}, 0.5)
    study.updates.finish(number, "complete")
"""


@pytest.mark.parametrize(
    ("end", "least"),
    [
        ("", 20),
        ("raise SystemExit(3)", 20),
        ("study.writer.flush(); os.kill(os.getpid(), signal.SIGKILL)", 20),
        ("os.kill(os.getpid(), signal.SIGKILL)", 0),
    ],
)
def test_however_a_program_ends_its_study_can_be_read(end, least, run_trials, child_environment):
    subprocess.run(
        [sys.executable, "-c", PROGRAM + end],
        env=child_environment,
        check=False,
        timeout=120,
        stderr=subprocess.DEVNULL,
    )
    study = new()
    assert least <= len(study.trials) <= 20
    assert all(trial.state == "complete" for trial in study.trials[:least])
    assert len(run_trials(study, 2, lambda hp, proposal: {"rate": hp.Float("rate", 0.0, 1.0)})) == 2


def test_time_of_samplers_and_storage_is_counted_apart(run_trials):
    study = new(sampler="tpe")
    run_trials(study, 15)
    study.close()
    assert study.seconds["sampler"] > 0 and study.seconds["storage"] > 0
    assert study.writer.cpu_seconds > 0


# Going on


def test_a_study_goes_back_to_where_a_snapshot_was_taken(run_trials):
    study = Study("s", direction="maximize", seed=3, sampler="random")
    study.persist({})

    def begin_one():
        proposal, hp, _ = study.asker.propose(lambda hp, proposal: hp.Float("x", 0, 1))
        return study.accept(proposal, hp)

    first, second = begin_one(), begin_one()
    study.updates.report(first, 1, {"val": 0.5}, 0.5)
    facts = study.state()
    third = begin_one()
    for number in (first, second, third):
        study.updates.report(number, 2, {"val": 0.9}, 0.9)
        study.updates.finish(number, "complete")
    later = [study.trials.by_number(number).hparams for number in (first, second, third)]
    study.close()

    again = Study("s", direction="maximize", seed=3, sampler="random", resumed=facts)
    assert again.resumed
    assert [trial.state for trial in again.trials] == ["running", "running"]
    assert again.trials.by_number(first).history == {"val": [0.5]}
    assert again.trials.by_number(first).value == 0.5
    again.persist({})
    proposal, hp, _ = again.asker.propose(lambda hp, proposal: hp.Float("x", 0, 1))
    assert again.accept(proposal, hp) == third
    assert [again.trials.by_number(number).hparams for number in (first, second, third)] == later
    for number in (first, second, third):
        again.updates.report(number, 2, {"val": 0.9}, 0.9)
        again.updates.finish(number, "complete")
    again.close()
    stored = optuna_study("s").trials
    assert [trial.state.name for trial in stored] == ["COMPLETE"] * 3
    assert [trial.intermediate_values for trial in stored] == [{1: 0.5, 2: 0.9}, {2: 0.9}, {2: 0.9}]


def test_what_was_decided_stands_where_a_sampler_decides_otherwise():
    study = Study("s", direction="maximize", seed=3, sampler="random")
    study.persist({})
    facts = study.state()
    proposal, hp, _ = study.asker.propose(lambda hp, proposal: hp.Float("x", 0, 1))
    study.accept(proposal, hp)
    study.close()
    other = Study("s", direction="maximize", seed=4, sampler="random", resumed=facts)
    proposal, hp, _ = other.asker.propose(lambda hp, proposal: hp.Float("x", 0, 1))
    assert other.accept(proposal, hp) == 0
    assert hp.hparams == study.trials.by_number(0).hparams


def test_a_snapshot_of_another_study_is_not_used():
    studies = [Study(name, direction="maximize", seed=s) for s, name in enumerate("ab")]
    for study in studies:
        study.persist({})
        proposal, hp, _ = study.asker.propose(lambda hp, proposal: hp.Float("x", 0, 1))
        study.accept(proposal, hp)
    facts = studies[0].state()
    for study in studies:
        study.close()
    other = Study("b", direction="maximize", seed=1, resumed=facts)
    assert not other.resumed
    assert Study("c", direction="maximize", resumed=facts).resumed is False
