"""MLflow: an experiment and a run for the study, a run below it for each trial.

Where runs go is MLflow's own setting (``MLFLOW_TRACKING_URI``, ``mlflow.set_tracking_uri``). The
experiment is that of ``MLFLOW_EXPERIMENT_NAME``, or else called as the study. Only MLflow's client
is used, so that a run that the user has active stays as it is.
"""

# The library is an extra, and not in every environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from paceline.study.storage.rdb import label_of
from paceline.study.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.values import epochs_of, facts_of, setting_of

#: What MLflow takes in one call.
_METRICS, _PARAMS = 1000, 100
#: Characters of a parameter and of a tag at most.
_PARAM, _TAG = 500, 5000
_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
#: The tag that marks the run of a study.
_STUDY = "paceline.study"
_IDENTITY = "paceline.id"
_FOLDER = "paceline.folder"  # which alone told studies apart before they had ids


class MlflowTracker:
    """Logs a study to MLflow.

    Args:
        keep_model: Whether the best model is stored as an artifact of the study's run.

    Attributes:
        where: How to look at the runs.
    """

    def __init__(self, *, keep_model: bool = False) -> None:
        self._keep_model = keep_model
        self._study: TrackedStudy
        self._client: Any
        self._experiment = self._parent = ""
        self.where: str | None = None

    def begin(self, study: TrackedStudy) -> Collection[int]:
        """Finds or makes the run of the study; returns the trials that have runs."""
        import mlflow
        from mlflow.entities import Param

        self._study, self._client = study, mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study.name
        found = self._client.get_experiment_by_name(name)
        self._experiment = (
            self._client.create_experiment(name) if found is None else found.experiment_id
        )
        # MLflow's pages are in the whole package, which the extra is not.
        uri = label_of(mlflow.get_tracking_uri())
        shown = f"at {uri}"
        if not uri.startswith(("http:", "https:", "databricks")):
            shown = (
                f"in {uri}; `mlflow ui --backend-store-uri {shlex.quote(uri)}` shows them, after "
                "`pip install mlflow`"
            )
        self.where = f"the runs of experiment {name!r} are {shown}"
        runs = self._runs(f"tags.`{_STUDY}` = '{_quoted(study.name)}'")
        # Two studies may have one name, such as one that was begun anew.
        tags_of = [(run, run.data.tags) for run in runs]
        mine = [r for r, t in tags_of if t.get(_IDENTITY, t.get(_FOLDER)) == study.identity]
        if mine:
            self._parent = mine[0].info.run_id
            self._client.set_terminated(self._parent, status="RUNNING")
        else:
            tags = {_STUDY: study.name, "mlflow.runName": study.name}
            tags |= {_IDENTITY: study.identity, _FOLDER: str(study.folder.resolve())}
            self._parent = self._client.create_run(self._experiment, tags=tags).info.run_id
            settings = setting_of(study.meta)
            params = [Param(_key(n), value[:_PARAM]) for n, value in settings.items()]
            self._client.log_batch(self._parent, params=params[:_PARAMS])
        children = self._runs(f"tags.`mlflow.parentRunId` = '{self._parent}'")
        # A run that a killed process left unfinished does not count: the trial gets another one.
        whole = [run.data.tags for run in children if run.info.status != "RUNNING"]
        numbers = [tags.get("paceline.trial", "") for tags in whole]
        return {int(number) for number in numbers if number.isdecimal()}

    def _runs(self, where: str) -> list[Any]:
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self._experiment], filter_string=where, max_results=1000, page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    def log_trial(self, trial: Trial) -> None:
        """Makes the run of a trial."""
        from mlflow.entities import Metric, Param, RunTag

        tags = {
            "mlflow.parentRunId": self._parent,
            "mlflow.runName": f"trial {trial.number}",
            **{name: value[:_TAG] for name, value in facts_of(trial).items()},
        }
        run = self._client.create_run(self._experiment, tags=tags).info.run_id
        params = [Param(_key(name), str(value)[:_PARAM]) for name, value in trial.hparams.items()]
        for i in range(0, len(params), _PARAMS):
            self._client.log_batch(run, params=params[i : i + _PARAMS])
        now = int(1000 * time.time())
        metrics = [
            Metric(_key(name), value, now, epoch)
            for epoch, logs in epochs_of(trial)
            for name, value in logs.items()
        ]
        for name, value in self._study.values_of(trial).items():
            best = trial.best_epoch or trial.epochs
            metrics.append(Metric(f"best_{_key(name)}", value, now, best))
        for i in range(0, len(metrics), _METRICS):
            self._client.log_batch(run, metrics=metrics[i : i + _METRICS])
        if trial.value is not None:
            self._client.log_batch(run, tags=[RunTag("paceline.value", repr(trial.value))])
        self._client.set_terminated(run, status=_STATUS.get(trial.state, "FINISHED"))

    def end(self, best: Trial | None, model: Path | None) -> None:
        """Closes the run of the study, with the best trial's value and number."""
        from mlflow.entities import Metric, RunTag

        if best is not None and best.value is not None:
            now, found = int(1000 * time.time()), self._study.values_of(best).items()
            # MLflow shows the value of the highest step: all are of one step, so it is the latest.
            metrics = [Metric(f"best_{_key(n)}", value, now, 0) for n, value in found]
            tags = [RunTag("paceline.best_trial", str(best.number))]
            self._client.log_batch(self._parent, metrics=metrics, tags=tags)
        if self._keep_model and model is not None:
            self._client.log_artifact(self._parent, str(model), "model")
        self._client.set_terminated(self._parent)


def _key(name: str) -> str:
    """A name as MLflow allows it: letters, digits, and a few signs."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
