"""TensorBoard: curves of each trial and the HParams page, written without TensorFlow.

Files go to ``runs/STUDY/tensorboard``, a folder for each trial:
``tensorboard --logdir runs/STUDY/tensorboard`` shows them.
"""

# The library is an extra, and not in every environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from paceline.program.files import as_shown
from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.values import epochs_of

#: The folder below the study's, and how a trial's is called.
FOLDER = "tensorboard"
_TRIAL = "trial-"
_DONE = "done"


class TensorBoardTracker:
    """Writes event files that TensorBoard reads."""

    def __init__(self) -> None:
        self._study: TrackedStudy
        self.where: str | None = None  # how to look at them

    def begin(self, study: TrackedStudy) -> Collection[int]:
        """Returns the trials whose folders are there whole."""
        import tensorboard.summary.writer.event_file_writer  # noqa: F401 - errors come now

        self._study = study
        folder = shlex.quote(str(as_shown(study.folder / FOLDER)))
        self.where = f"`tensorboard --logdir {folder}` shows the trials"
        found = (study.folder / FOLDER).glob(f"{_TRIAL}*/{_DONE}")
        numbers = [path.parent.name.removeprefix(_TRIAL) for path in found]
        return {int(n) for n in numbers if n.isdecimal() and len(n) < 17}

    def log_trial(self, trial: Trial) -> None:
        """Writes the folder of a trial."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._study.folder / FOLDER / f"{_TRIAL}{trial.number}"
        for old in folder.glob("events.*"):  # of a process that was killed before it was whole
            old.unlink()
        (folder / _DONE).unlink(missing_ok=True)
        writer = EventFileWriter(str(folder))
        now = time.time()

        def add(summary: Any, step: int = 0) -> None:
            writer.add_event(Event(wall_time=now, step=step, summary=summary))

        add(_start_summary(trial, now))
        for epoch, logs in epochs_of(trial):
            values = [Summary.Value(tag=name, simple_value=v) for name, v in logs.items()]
            add(Summary(value=values), epoch)
        found = self._study.values_of(trial).items()
        values = [
            Summary.Value(tag=f"best_{name}", simple_value=value)
            for name, value in found
            if math.isfinite(value)
        ]
        if values:
            add(Summary(value=values), trial.best_epoch or trial.epochs)
        status = {
            "complete": Status.STATUS_SUCCESS,
            "failed": Status.STATUS_FAILURE,
        }.get(trial.state, Status.STATUS_UNKNOWN)
        add(_end_summary(status, now))
        writer.flush()  # which raises what its thread met, such as a full disk; closing does not
        writer.close()
        (folder / _DONE).touch()

    def end(self, best: Trial | None, model: Path | None) -> None:
        """Nothing is left to write: each trial has its files."""


def _start_summary(trial: Trial, now: float) -> Any:
    """What the HParams page reads of a trial: its values.

    TensorBoard finds the columns from the values of all trials. The page would take an experiment's
    record only from the first trial, which lacks hyperparameters of later ones.
    """
    from tensorboard.plugins.hparams import plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(
        group_name=f"trial {trial.number}", start_time_secs=now
    )
    for name, value in trial.hparams.items():
        start.hparams[name].CopyFrom(_value(value))
    return _summary(
        "_hparams_/session_start_info", plugin_data_pb2.HParamsPluginData(session_start_info=start)
    )


def _value(value: Any) -> Any:
    from google.protobuf import struct_pb2

    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, (int, float)):
        return struct_pb2.Value(number_value=value)
    return struct_pb2.Value(string_value=str(value))


def _end_summary(status: Any, now: float) -> Any:
    from tensorboard.plugins.hparams import plugin_data_pb2

    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=now)
    return _summary(
        "_hparams_/session_end_info", plugin_data_pb2.HParamsPluginData(session_end_info=end)
    )


def _summary(tag: str, data: Any) -> Any:
    """A record of the HParams plugin, as the plugin's own ``metadata`` module describes it."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import metadata

    data.version = metadata.PLUGIN_DATA_VERSION
    plugin = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString()
    )
    described = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
