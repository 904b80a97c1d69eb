"""Searches over choices of several types: storages, samplers, tables, resuming, the command."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import keras
import pytest

import paceline
import toys
from commands import command
from paceline.report.tables import to_csv

X, Y = toys.data()
RATES = [None, 0.2, 0.5]
TYPED = [1, 1.0, True, "1", None]
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 1, "batch_size": 25}


def build(hp: Any) -> keras.Model:
    rate, scale = hp.Choice("rate", RATES), hp.Choice("scale", TYPED)
    hp.Int("more", 1, 2, parent_name="scale", parent_values=[1.0])
    assert ("more" in hp) == (type(scale) is float)
    return toys.softmax_at(0.01 if rate is None else rate)  # one program for all


def typed(hparams: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, type(value), value) for name, value in hparams.items())


def search(n: int | str, **settings: Any) -> paceline.Tuner:
    given = {"study": "s", "on_note": len, "objective": "val_loss", "share_widths": False}
    tuner = paceline.Tuner(build, **(given | settings))
    tuner.search(X, Y, n_trials=n, **CALL)
    return tuner


@pytest.mark.parametrize("storage", [None, "sqlite:///s.db"])
def test_a_grid_has_each_value_once_in_every_storage_and_table(storage: str | None) -> None:
    tuner = search(100, sampler="grid", storage=storage)
    tried = [typed(trial.hparams) for trial in tuner._require_study().trials]
    assert len(tried) == len(set(tried)) == 3 * (4 + 2)  # two values of ``more`` under 1.0
    assert all(trial.state == "complete" for trial in tuner._require_study().trials)
    read = paceline.Tuner(build, study="s", storage=storage)
    trials = read._require_study().trials
    assert [typed(trial.hparams) for trial in trials] == tried
    frame = read.results()
    for place, trial in enumerate(trials):
        assert typed(dict(frame.iloc[place][["rate", "scale"]]))[1] == typed(trial.hparams)[1]
    rows = list(csv.DictReader(io.StringIO(to_csv(trials))))
    assert {row["rate"] for row in rows} == {"None", "0.2", "0.5"}
    assert {row["more"] for row in rows} == {"", "1", "2"}
    again = search(100, sampler="grid", storage=storage)
    assert len(again._require_study().trials) == len(tried)  # nothing is tried twice
    assert read.best_hparams == tuner.best_hparams
    assert read.best_model() is not None


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_samplers_try_all_values_and_a_search_resumes(sampler: str) -> None:
    search(9, sampler=sampler, seed=3)
    tuner = search("+9", sampler=sampler, seed=3)
    trials = tuner._require_study().trials
    assert len(trials) == 18
    assert {(type(t.hparams["rate"]), t.hparams["rate"]) for t in trials} == {
        (type(rate), rate) for rate in RATES
    }
    assert len({(type(t.hparams["scale"]), t.hparams["scale"]) for t in trials}) == len(TYPED)


def test_values_that_are_enqueued_keep_their_types() -> None:
    tuner = paceline.Tuner(build, study="s", on_note=print, objective="val_loss")
    wanted = [{"rate": None, "scale": 1.0}, {"rate": 0.5, "scale": 1}, {"rate": 0.2, "scale": "1"}]
    tuner.enqueue(wanted)
    tuner.search(X, Y, n_trials=3, **CALL)
    found = [trial.hparams for trial in tuner._require_study().trials]
    assert [typed({n: h[n] for n in ("rate", "scale")}) for h in found] == list(map(typed, wanted))


def test_the_command_reads_and_enqueues_them(capsys: pytest.CaptureFixture[str]) -> None:
    search(2, sampler="random")
    assert command("enqueue", "s", "rate=None", "scale=1.0") == 0
    tuner = search("+1", sampler="random")
    last = list(tuner._require_study().trials)[-1]
    assert typed(last.hparams)[:2] == (("rate", type(None), None), ("scale", float, 1.0))
    capsys.readouterr()
    assert command("trials", "s", "--json", "--where", "rate=none") == 0
    printed = json.loads(capsys.readouterr().out)
    assert last.number in [record["number"] for record in printed]
    assert all(record["hparams"]["rate"] is None for record in printed)


def test_figures_and_a_report_are_made(tmp_path: Any) -> None:
    tuner = search(6, sampler="random")
    assert tuner.plot.parallel() is not None
    assert tuner.report(tmp_path / "r.html").exists()
