"""What the real trackers make of trials that they are told of directly, without a search."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.mlflow import MlflowTracker
from paceline.tuner.trackers.tensorboard import TensorBoardTracker
from paceline.tuner.trackers.wandb import WandbTracker


def study(id: str = "", *, shared: bool = False) -> TrackedStudy:
    meta = {"id": id} if id else {}
    return TrackedStudy("s", "val_loss", "minimize", Path("runs/s"), meta, shared)


def trial(number: int, value: float = 0.5, **hparams: Any) -> Trial:
    history = {"val_loss": [value]}
    return Trial(number, "complete", value, hparams, 1, history=history, best_epoch=1)


def runs_of(client: Any) -> tuple[dict[str, Any], list[Any]]:
    """The runs of studies by their ids, and those of trials by number."""
    runs = client.search_runs([client.get_experiment_by_name("s").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    by_id = {run.info.run_id: run for run in parents}
    children = [run for run in runs if run.info.run_id not in by_id]
    return by_id, sorted(children, key=lambda run: run.data.tags["paceline.trial"])


def test_mlflow_keeps_a_study_apart_from_the_one_whose_folder_it_has(mlflow_client) -> None:
    for id, known in (("", set()), ("a1", set()), ("b2", set()), ("b2", {0}), ("", {0})):
        tracker = MlflowTracker()
        assert tracker.begin(study(id)) == known
        if not known:
            tracker.log_trial(trial(0))
        tracker.end(None, None)
    parents, children = runs_of(mlflow_client)
    assert len(parents) == 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == set(parents)


def test_wandb_keeps_a_study_apart_from_the_one_whose_folder_it_has(monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    ids: list[str] = []
    monkeypatch.setattr(wandb, "init", lambda **options: ids.append(options["id"]))
    for each in (study(), study("a1"), study("b2"), study("b2")):
        tracker = WandbTracker()
        tracker.begin(each)
        tracker._run("trial 0", "trial", {})
    assert len(set(ids)) == 3
    assert ids[2] == ids[3]


def test_mlflow_shows_the_last_best_value_whatever_its_trial_s_number(mlflow_client) -> None:
    for number, value in ((7, 0.5), (2, 0.3), (4, 0.3)):
        tracker = MlflowTracker()
        tracker.begin(study())
        tracker.end(trial(number, value), None)
        ((parent,), _) = (list(found) for found in runs_of(mlflow_client))
        run = mlflow_client.get_run(parent)
        assert run.data.metrics == {"best_val_loss": value}
        assert run.data.tags["paceline.best_trial"] == str(number)


def test_mlflow_takes_any_names(mlflow_client) -> None:
    names = [
        "lr",
        "rate(a)",
        "rate[a]",
        "../up",
        "enc//dropout",
        "/abs",
        "opt",
        "opt/lr",
        "a" * 300,
    ]
    names += ["\N{GREEK SMALL LETTER ALPHA}" * 200, "."]
    tracker = MlflowTracker()
    tracker.begin(study())
    tracker.log_trial(trial(0, **{name: i for i, name in enumerate(names)}))
    metrics = {"val_loss": [0.5], "val_f(1)": [0.2], "val_f[1]": [0.3]}
    tracker.log_trial(Trial(1, "complete", 0.5, {}, 1, history=metrics, best_epoch=1))
    tracker.end(None, None)
    _, (first, second) = runs_of(mlflow_client)
    assert sorted(first.data.params.values()) == sorted(map(str, range(len(names))))
    assert first.data.params["lr"] == "0" and first.data.params["opt/lr"] == "7"
    assert sorted(second.data.metrics.values()) == [0.2, 0.3, 0.5, 0.5]
    assert {first.info.status, second.info.status} == {"FINISHED"}


def test_mlflow_ends_the_runs_of_a_trial_that_cannot_be_logged(mlflow_client, monkeypatch) -> None:
    from mlflow.entities import Metric

    tracker = MlflowTracker()
    tracker.begin(study())
    monkeypatch.setattr("mlflow.entities.Metric", None)
    with pytest.raises(TypeError, match="not callable"):
        tracker.log_trial(trial(0))
    parents, (child,) = runs_of(mlflow_client)
    assert [run.info.status for run in (*parents.values(), child)] == ["FAILED", "FAILED"]
    monkeypatch.setattr("mlflow.entities.Metric", Metric)
    tracker = MlflowTracker()
    assert tracker.begin(study()) == set()  # the trial is to be logged again
    tracker.log_trial(trial(0))
    tracker.end(None, None)
    assert MlflowTracker().begin(study()) == {0}


@pytest.mark.parametrize("shared", [False, True])
def test_mlflow_ends_what_a_killed_process_has_left(mlflow_client, shared) -> None:
    tracker = MlflowTracker()
    tracker.begin(study())
    tags = {"mlflow.parentRunId": tracker._parent, "paceline.trial": "0"}
    left = mlflow_client.create_run(tracker._experiment, tags=tags).info.run_id
    for _ in range(2):
        assert MlflowTracker().begin(study(shared=shared)) == set()
        assert mlflow_client.get_run(left).info.status == ("RUNNING" if shared else "FAILED")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_does_not_take_a_trial_for_whole_whose_last_record_is_not_written(
    monkeypatch,
) -> None:
    record_writer = pytest.importorskip("tensorboard.summary.writer.record_writer")
    write, full = record_writer.RecordWriter.write, [True]

    def to_a_full_disk(self: Any, data: bytes) -> None:
        if full[0] and b"session_end_info" in data:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(record_writer.RecordWriter, "write", to_a_full_disk)
    before = set(threading.enumerate())
    tracker = TensorBoardTracker()
    assert tracker.begin(study()) == set()
    with pytest.raises(OSError, match="No space left"):
        tracker.log_trial(trial(0))
    assert TensorBoardTracker().begin(study()) == set()
    full[0] = False
    tracker.log_trial(trial(0))
    assert TensorBoardTracker().begin(study()) == {0}
    full[0] = True
    with pytest.raises(OSError, match="No space left"):
        tracker.log_trial(trial(0))
    assert TensorBoardTracker().begin(study()) == set()
    # TensorBoard's writers end by that error, which must not be told in the next test.
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)


def test_tensorboard_has_a_column_for_what_only_later_trials_have() -> None:
    pytest.importorskip("tensorboard")
    from hparams_page import columns, page_of

    tracker = TensorBoardTracker()
    tracker.begin(study())
    tracker.log_trial(trial(0, layers=1, first=8))
    tracker.log_trial(trial(1, layers=2, momentum=0.9, bias=True))
    assert columns(page_of("runs/s/tensorboard")) == (
        {"layers", "first", "momentum", "bias"},
        {"val_loss", "best_val_loss"},
    )


def test_wandb_logs_a_metric_that_is_called_epoch(monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    run, logged = MagicMock(), []
    run.log = lambda values, step: logged.append((step, values))
    monkeypatch.setattr(wandb, "init", lambda **options: run)
    each = study()
    each.folder.mkdir(parents=True)
    tracker = WandbTracker()
    tracker.begin(each)
    histories = {"val_loss": [0.5, 0.4], "epoch": [7.0, float("nan")]}
    tracker.log_trial(Trial(0, "complete", 0.4, {}, 2, history=histories, best_epoch=2))
    assert logged == [(1, {"val_loss": 0.5, "epoch": 7.0}), (2, {"val_loss": 0.4, "epoch": 2})]
