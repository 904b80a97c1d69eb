"""MLflow: an experiment and a run for the study, a run below it for each trial.

Where runs go is MLflow's own setting (``MLFLOW_TRACKING_URI``, ``mlflow.set_tracking_uri``). The
experiment is that of ``MLFLOW_EXPERIMENT_NAME``, or else called as the study. Only MLflow's client
is used, so that a run that the user has active stays as it is.
"""

# The library is an extra, and not in every environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.study.storage.rdb import label_of
from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.values import epochs_of, facts_of, setting_of

#: What MLflow takes in one call.
_METRICS, _PARAMS = 1000, 100
#: Characters of a parameter and of a tag at most.
_PARAM, _TAG = 500, 5000
#: Bytes of a key at most: a store of files calls files so.
_KEY = 250
_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
#: The tag that marks the run of a study.
_STUDY = "paceline.study"
_IDENTITY = "paceline.id"
_FOLDER = "paceline.folder"  # which alone told studies apart before they had ids
#: The tag of a trial's run that was not logged to its end: the trial gets another run.
_PARTIAL = "paceline.partial"


class MlflowTracker:
    """Logs a study to MLflow; ``keep_model`` stores the best model as an artifact of its run."""

    def __init__(self, *, keep_model: bool = False) -> None:
        self._keep_model = keep_model
        self._study: TrackedStudy
        self._client: Any
        self._experiment = self._parent = ""
        self.where: str | None = None  # how to look at the runs

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
        # Two studies may have one name, such as one that was started over.
        tags_of = [(run, run.data.tags) for run in runs]
        mine = [r for r, t in tags_of if t.get(_IDENTITY) == study.identity]
        if mine:
            self._parent = mine[0].info.run_id
            self._client.set_terminated(self._parent, status="RUNNING")
        else:
            tags = {_STUDY: study.name, "mlflow.runName": study.name}
            tags |= {_IDENTITY: study.identity, _FOLDER: str(study.folder.resolve())}
            self._parent = self._client.create_run(self._experiment, tags=tags).info.run_id
            settings = setting_of(study.meta)
            keys = keys_of(settings)
            params = [Param(keys[n], value[:_PARAM]) for n, value in settings.items()]
            self._client.log_batch(self._parent, params=params[:_PARAMS])
        children = self._runs(f"tags.`mlflow.parentRunId` = '{self._parent}'")
        # A run that a killed process left unfinished does not count: the trial gets another one.
        running = [run.info.run_id for run in children if run.info.status == "RUNNING"]
        for run in running if not study.shared else ():
            self._abandon(run)
        whole = [run.data.tags for run in children if run.info.run_id not in running]
        numbers = [tags.get("paceline.trial", "") for tags in whole if _PARTIAL not in tags]
        return {int(number) for number in numbers if number.isdecimal()}

    @contextmanager
    def _ending(self, run: str) -> Iterator[None]:
        """Ends a run of a trial or the study where an error keeps it from being whole."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # such as a server that is gone; the first error is told
                self._abandon(run)
            raise

    def _abandon(self, run: str) -> None:
        if run != self._parent:
            self._client.set_tag(run, _PARTIAL, "true")
        self._client.set_terminated(run, status="FAILED")

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
        tags = {
            "mlflow.parentRunId": self._parent,
            "mlflow.runName": f"trial {trial.number}",
            **{name: value[:_TAG] for name, value in facts_of(trial).items()},
        }
        with self._ending(self._parent):
            run = self._client.create_run(self._experiment, tags=tags).info.run_id
            with self._ending(run):
                self._fill(run, trial)

    def _fill(self, run: str, trial: Trial) -> None:
        from mlflow.entities import Metric, Param, RunTag

        keys = keys_of(trial.hparams)
        params = [Param(keys[name], str(value)[:_PARAM]) for name, value in trial.hparams.items()]
        for i in range(0, len(params), _PARAMS):
            self._client.log_batch(run, params=params[i : i + _PARAMS])
        now, best = int(1000 * time.time()), trial.best_epoch or trial.epochs
        values = [(name, v, epoch) for epoch, logs in epochs_of(trial) for name, v in logs.items()]
        values += [(f"best_{name}", v, best) for name, v in self._study.values_of(trial).items()]
        keys = keys_of(name for name, _, _ in values)
        metrics = [Metric(keys[name], value, now, step) for name, value, step in values]
        for i in range(0, len(metrics), _METRICS):
            self._client.log_batch(run, metrics=metrics[i : i + _METRICS])
        if trial.value is not None:
            self._client.log_batch(run, tags=[RunTag("paceline.value", repr(trial.value))])
        self._client.set_terminated(run, status=_STATUS.get(trial.state, "FINISHED"))

    def end(self, best: Trial | None, model: Path | None) -> None:
        """Closes the run of the study, with the best trial's value and number."""
        with self._ending(self._parent):
            if best is not None and best.value is not None:
                self._log_best(best)
            if self._keep_model and model is not None:
                self._client.log_artifact(self._parent, str(model), "model")
            self._client.set_terminated(self._parent)

    def _log_best(self, best: Trial) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(1000 * time.time())
        found = {f"best_{name}": value for name, value in self._study.values_of(best).items()}
        keys = keys_of(found)
        # MLflow shows the value of the highest step: all are of one step, so it is the latest.
        metrics = [Metric(keys[name], value, now, 0) for name, value in found.items()]
        tags = [RunTag("paceline.best_trial", str(best.number))]
        self._client.log_batch(self._parent, metrics=metrics, tags=tags)


def keys_of(names: Iterable[str]) -> dict[str, str]:
    """Return name -> its key in MLflow: itself, or else a similar text with a digest of the name.

    Keys are of letters, digits and a few signs. A store of files has a file for each key. So keys
    are also plain paths, and none is below another one of the same run.
    """
    keys = {name: name if _is_key(name) else _similar(name) for name in names}
    above = {str(path) for key in keys.values() for path in PurePosixPath(key).parents}
    return {name: _similar(name) if key in above else key for name, key in keys.items()}


def _is_key(name: str) -> bool:
    plain = re.fullmatch(r"[\w\-. :/]+", name) and len(os.fsencode(name)) <= _KEY
    return bool(plain) and posixpath.normpath(name) == name and name[0] != "/" and name[:2] != ".."


def _similar(name: str) -> str:
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    text = re.sub(r"[^\w\- :]", "_", name).encode(errors="replace")[: _KEY - 9]
    return f"{text.decode(errors='ignore')}-{digest}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
