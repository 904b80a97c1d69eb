"""The last variables of the best trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.study.trials.trial import Trial
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.checkpoint.trial_variables import LastVariables
from stopping import by_epochs


def variables(value: float) -> list[list[Any]]:
    return [[np.full((2, 3), value, "float32")], [np.array(7)]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where files go: the working folder is in tmp_path, too."""
    return tmp_path / "ends"


@pytest.fixture
def ends(folder: Path) -> LastVariables:
    """Two best of higher values; trials 0 and 1 are saved."""
    ends = LastVariables(folder, 2, "maximize")
    for number, value in enumerate((0.5, 0.6)):
        ends.offer(number, 3, value, lambda value=value: variables(value))
    ends.save()
    return ends


def files(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors"))


def test_who_is_no_longer_among_the_best_goes(ends, folder):
    ends.offer(2, 6, 0.7, lambda: variables(0.7))
    ends.save()
    assert ends.load(0, 3) is None
    assert len(files(folder)) == 2
    found = ends.load(2, 6)
    assert found is not None
    np.testing.assert_array_equal(found[0][0], variables(0.7)[0][0])


def test_who_is_to_go_on_stays_until_the_search_is_done(ends, folder):
    """Those that have gone on before it displace it: it must be there all the same."""
    ends.awaited.add(0)
    ends.offer(2, 6, 0.7, lambda: variables(0.7))
    ends.save()
    assert ends.load(0, 3) is not None
    assert ends.load(1, 3) is not None
    ends.awaited.clear()
    ends.save()
    assert ends.load(0, 3) is None
    assert len(files(folder)) == 2


def test_a_checkpoint_has_the_ends_of_those_that_are_complete(fresh_folder, monkeypatch):
    """Killed after a checkpoint, before the best models are saved: they were in memory alone."""
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(TrainedModels, "save", lambda self, note: None)
    by_epochs(monkeypatch)

    def interrupt(report):
        if len(reports) > 2:  # two trials of one epoch are complete, and a checkpoint has both
            raise KeyboardInterrupt

    reports = observe_reports(monkeypatch, before=interrupt)
    x, y = toys.data(40)
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        sampler="random",
        parallel_trials=1,
        keep_best=2,
        on_note=lambda text: None,
    )
    with pytest.raises(KeyboardInterrupt, match="^$"):
        tuner.search(x, y, validation_data=(x, y), epochs=1, batch_size=8, n_trials=6)
    complete = {trial.number for trial in tuner._require_study().trials if trial.value is not None}
    saved = {int(path.name.split("-")[1]) for path in files(Path("runs/s/ends"))}
    assert saved
    assert saved <= complete


def test_what_another_study_left_is_nobodys_end(ends, folder):
    """The storage was removed, and the study began anew beside the files of what it held."""

    def read(*values: float, study: str = "") -> LastVariables:
        found = LastVariables(folder, 2, "maximize", study=lambda: study)
        found.expect(Trial(number, "complete", value) for number, value in enumerate(values))
        return found

    assert read(0.5, 0.6).load(1, 3) is not None
    assert read(0.5, 0.7).load(1, 3) is None
    assert read(0.5, 0.6, study="another").load(1, 3) is None


def test_what_is_saved_is_not_held_and_a_trial_that_comes_again_replaces_it(folder):
    ends = LastVariables(folder, 1, "maximize")
    for weight in (1.0, 2.0):
        ends.offer(0, 3, 0.5, lambda weight=weight: variables(weight))
        ends.save()
        (path,) = files(folder)
        found = LastVariables(folder, 1, "maximize").load(0, 3)
        assert found is not None
        np.testing.assert_array_equal(found[0][0], variables(weight)[0][0])
    path.unlink()
    assert ends.load(0, 3) is None
