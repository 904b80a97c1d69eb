"""Searches logged to the real MLflow, Weights & Biases and TensorBoard, read back by their readers.

`make test-trackers` runs these, in an environment of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import toys

CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 3, "verbose": 0}


def build(hp: Any) -> Any:
    if hp.Int("width", 1, 8) == 3:
        raise ValueError("three is not wanted")
    hp.Choice("activation", ["relu", "elu"])
    hp.Boolean("wide")
    return toys.dense(hp)


def search(track: Any, n_trials: int = 12, **options: Any) -> tuple[paceline.Tuner, list[str]]:
    notes: list[str] = []
    tuner = paceline.Tuner(
        build, study="s", sampler="random", trackers=track, on_note=notes.append, **options
    )
    tuner.search(*toys.data(), n_trials=n_trials, **CALL)
    assert not [note for note in notes if "no longer logs" in note or "stopped waiting" in note], (
        notes
    )
    states = {trial.state for trial in tuner.results().itertuples()}
    assert states == {"complete", "failed"}
    return tuner, notes


def children(client: Any) -> tuple[Any, dict[int, Any]]:
    """The run of the study, and those of its trials by number."""
    experiment = client.get_experiment_by_name("s")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    below = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(below) == len(runs) - 1
    found = {int(run.data.tags["paceline.trial"]): run for run in below}
    assert len(found) == len(below)
    return parent, found


def test_mlflow_s_own_callback_logs_each_trial_to_its_run(mlflow_client) -> None:
    """As in ``fit``: each trial's callback begins a run, and the trials do not mix."""
    import mlflow
    from mlflow.keras.callback import MlflowCallback

    class OwnRun(MlflowCallback):
        def on_train_begin(self, logs: Any = None) -> None:
            mlflow.start_run(nested=True)
            super().on_train_begin(logs)

        def on_train_end(self, logs: Any = None) -> None:
            mlflow.end_run()

    notes: list[str] = []
    tuner = paceline.Tuner(toys.dense, study="s", sampler="random", on_note=notes.append)
    mlflow.set_experiment("by callback")
    with mlflow.start_run() as parent:
        tuner.search(*toys.data(), n_trials=3, callbacks=[OwnRun()], **CALL)
    (note,) = [note for note in notes if "one at a time" in note and "callbacks: " in note]
    assert "OwnRun" in note
    experiment = mlflow_client.get_experiment_by_name("by callback")
    runs = mlflow_client.search_runs([experiment.experiment_id])
    runs = [run for run in runs if run.info.run_id != parent.info.run_id]
    assert len(runs) == 3
    for number in range(3):
        trial = tuner.trial(number)
        rates = [float(run.data.params["optimizer_learning_rate"]) for run in runs]
        run = runs[int(np.argmin(np.abs(np.log(rates) - np.log(trial.hparams["lr"]))))]
        for name, values in trial.history.items():
            history = mlflow_client.get_metric_history(run.info.run_id, name)
            assert [m.value for m in history] == pytest.approx(values)


def test_mlflow_has_a_run_for_each_trial(mlflow_client) -> None:
    tuner, notes = search("mlflow+model")
    assert any("`mlflow ui --backend-store-uri file:///" in note for note in notes)
    parent, runs = children(mlflow_client)
    assert sorted(runs) == list(range(12))
    for number, run in runs.items():
        trial = tuner.trial(number)
        assert run.data.params == {name: str(value) for name, value in trial.hparams.items()}
        assert run.info.status == {"complete": "FINISHED", "failed": "FAILED"}[trial.state]
        for name, values in trial.history.items():
            history = mlflow_client.get_metric_history(run.info.run_id, name)
            assert [(m.step, m.value) for m in history] == list(enumerate(values, 1))
        if trial.state == "complete":
            assert run.data.metrics["best_val_accuracy"] == trial.value
        else:
            assert "three is not wanted" in run.data.tags["paceline.error"]
    best = tuner.best_trial
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_val_accuracy"] == best.value
    assert parent.data.tags["paceline.best_trial"] == str(best.number)
    assert parent.data.params["sampler"] == "random"
    (artifact,) = mlflow_client.list_artifacts(parent.info.run_id, "model")
    assert artifact.path.endswith(".keras")


def test_mlflow_logs_a_trial_once_however_often_a_study_goes_on(mlflow_client) -> None:
    search(None, n_trials=8)
    search("mlflow", n_trials=12)
    search("mlflow", n_trials=14)
    _, runs = children(mlflow_client)
    assert sorted(runs) == list(range(14))


def test_a_run_that_the_user_has_active_stays_active(mlflow_client) -> None:
    import mlflow

    with mlflow.start_run() as mine:
        search("mlflow")
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == mine.info.run_id
        mlflow.log_metric("mine", 1.0)
    assert mlflow_client.get_run(mine.info.run_id).data.metrics == {"mine": 1.0}


def test_tensorboard_reads_curves_and_hyperparameters() -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    tuner, notes = search("tensorboard")
    assert any("`tensorboard --logdir runs/s/tensorboard`" in note for note in notes)
    folder = Path("runs/s/tensorboard")
    assert len(list(folder.iterdir())) == 12
    for number in range(12):
        trial = tuner.trial(number)
        events = EventAccumulator(str(folder / f"trial-{number}"))
        events.Reload()
        for name, values in trial.history.items():
            read = [(e.step, e.value) for e in events.Scalars(name)]
            assert [step for step, _ in read] == list(range(1, len(values) + 1))
            for (_, got), value in zip(read, values, strict=True):
                assert math.isclose(got, value, rel_tol=1e-6)  # event files hold float32
        plugin = events.summary_metadata
        start = metadata.parse_session_start_info_plugin_data(
            plugin["_hparams_/session_start_info"].plugin_data.content
        )
        values = {name: _value_of(v) for name, v in start.hparams.items()}
        assert values == trial.hparams
        end = metadata.parse_session_end_info_plugin_data(
            plugin["_hparams_/session_end_info"].plugin_data.content
        )
        assert isinstance(end, plugin_data_pb2.SessionEndInfo)
        assert end.status == {"complete": 1, "failed": 2}[trial.state]


def _value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("kind"))


def test_tensorboard_shows_the_hparams_page() -> None:
    """TensorBoard's own plugin gathers the runs into a table."""
    pytest.importorskip("tensorboard")
    from tensorboard.context import RequestContext
    from tensorboard.plugins.hparams import api_pb2, list_session_groups

    from hparams_page import columns, page_of

    tuner, _ = search("tensorboard")
    context, request_context = page_of("runs/s/tensorboard"), RequestContext()
    assert columns(context)[0] == set(tuner.best_hparams)
    request = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[0, 1, 2, 3],
        col_params=[api_pb2.ColParams(hparam="lr")],
        slice_size=100,
    )
    response = list_session_groups.Handler(request_context, context, "", request).run()
    assert response.total_size == 12


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, which has LevelDB's log format behind seven bytes.

    The library has no reader that needs no server since it reads in Go; the records themselves are
    read by its own protocol buffers.
    """
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # a block's end holds no header
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def wandb_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """What lies there of each run, by name."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, dict[str, Any]] = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        run: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "name": ""}
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                run["name"], run["group"] = record.run.display_name, record.run.run_group
                for each in record.run.config.update:
                    run["config"][each.key] = json.loads(each.value_json)
            if record.WhichOneof("record_type") == "history":
                run["history"].append(
                    {
                        each.key or "/".join(each.nested_key): json.loads(each.value_json)
                        for each in record.history.item
                    }
                )
            if record.WhichOneof("record_type") == "summary":
                for each in record.summary.update:
                    key = each.key or "/".join(each.nested_key)
                    run["summary"][key] = json.loads(each.value_json)
        found[run["name"]] = run
    return found


def test_wandb_offline_holds_each_trial(tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tuner, notes = search("wandb+model", n_trials=4 + 8)
    (where,) = [note for note in notes if "wandb sync" in note]
    assert f"{tmp_path}/wandb/offline-run-*" in where
    assert wandb.run is None
    found = wandb_runs(tmp_path)
    assert set(found) == {"study", *(f"trial {n}" for n in range(12))}
    for number in range(12):
        trial, run = tuner.trial(number), found[f"trial {number}"]
        assert run["group"] == "s"
        assert {n: v for n, v in run["config"].items() if n != "_wandb"} == trial.hparams
        for name, values in trial.history.items():
            assert [step[name] for step in run["history"] if name in step] == values
        if trial.value is not None:
            assert run["summary"]["best_val_accuracy"] == trial.value
    assert found["study"]["summary"]["best_trial"] == tuner.best_trial.number
    assert sorted(int(word) for word in Path("runs/s/wandb-trials.txt").read_text().split()) == [
        *range(12)
    ]


def test_a_search_that_goes_on_logs_new_trials_alone_in_wandb(tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    search("wandb", n_trials=10)
    search("wandb", n_trials=12)
    words = Path("runs/s/wandb-trials.txt").read_text().split()
    assert sorted(map(int, words)) == list(range(12))


def test_all_at_once(mlflow_client, tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tuner, _ = search(["mlflow", "tensorboard", "wandb"])
    assert {t.plan for t in tuner.results().itertuples() if t.state == "complete"} == {"vectorized"}


def test_each_has_the_values_of_several_objectives(mlflow_client, tmp_path, monkeypatch) -> None:
    """Of complete trials all of them, and in the study's run those of the best by the first."""
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from hparams_page import columns, page_of

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    names = ["val_accuracy", "val_loss", "params"]
    tuner, _ = search(["mlflow", "tensorboard", "wandb"], objective=names)
    parent, runs = children(mlflow_client)
    online = wandb_runs(tmp_path)

    def values_in(found: Any) -> dict[str, float]:
        return {name: found[f"best_{name}"] for name in names if f"best_{name}" in found}

    for number, run in runs.items():
        trial = tuner.trial(number)
        complete = trial.state == "complete"
        truth = dict(zip(names, trial.values, strict=True)) if complete else {}
        assert values_in(run.data.metrics) == truth
        assert values_in(online[f"trial {number}"]["summary"]) == truth
        events = EventAccumulator(f"runs/s/tensorboard/trial-{number}")
        events.Reload()
        scalars = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
        assert values_in(scalars) == pytest.approx(truth)  # event files hold float32
    assert {f"best_{name}" for name in names} <= columns(page_of("runs/s/tensorboard"))[1]
    best = dict(zip(names, tuner.pareto()[0].values, strict=True))
    assert values_in(parent.data.metrics) == best
    assert values_in(online["study"]["summary"]) == best
    assert online["study"]["summary"]["best_trial"] == tuner.pareto()[0].number
