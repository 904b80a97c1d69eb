"""What real searches record of their slots agrees with their trials."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import paceline
import toys
from paceline.errors import UsageError
from paceline.records import SlotStay
from paceline.report.progress import LiveState, read_live, watch
from paceline.study.timeline import TIMELINE, SearchTimeline, read_timelines
from paceline.tuner.search.recording import LiveWriter

CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 4, "verbose": 0}


def search(n_trials: int = 10, call: dict[str, Any] | None = None, **options: Any) -> Any:
    tuner = paceline.Tuner(
        toys.dense, study="s", sampler="random", on_note=lambda text: None, **options
    )
    tuner.search(*toys.data(), n_trials=n_trials, **{**CALL, **(call or {})})
    return tuner


def epochs_by_trial(searches: list[SearchTimeline]) -> Counter[int]:
    found: Counter[int] = Counter()
    for each in searches:
        for stay in each.stays:
            found[stay.trial] += stay.epochs
    return found


def assert_one_at_a_time(stays: list[SlotStay]) -> None:
    """No slot holds two trials at once."""
    by_slot: dict[tuple[int, int], list[SlotStay]] = {}
    for stay in stays:
        by_slot.setdefault((stay.pack, stay.slot), []).append(stay)
    for those in by_slot.values():
        those.sort(key=lambda stay: stay.began)
        for first, second in zip(those, those[1:], strict=False):
            assert first.ended <= second.began


@pytest.mark.parametrize("pruner", [pytest.param(None, marks=pytest.mark.slow), "asha"])
def test_stays_have_the_epochs_of_the_trials(pruner) -> None:
    tuner = search(12, parallel_trials=4, pruner=pruner)
    (found,) = read_timelines(Path("runs/s"))
    assert epochs_by_trial([found]) == {t.number: t.epochs for t in map(tuner.trial, range(12))}
    assert_one_at_a_time(found.stays)
    assert all(stay.slot < 4 for stay in found.stays)
    assert {stay.program for stay in found.stays} == {tuner.trial(0).program_id}
    assert {pack.pack for pack in found.packs} == {stay.pack for stay in found.stays}
    assert found.spent is not None
    assert found.spent.finished
    assert not found.cut
    summary = tuner.summary()
    assert found.spent.seconds["total"] == pytest.approx(summary["seconds"]["total"])
    programs = summary["programs"]
    assert len(found.compiled) == programs["compiled"] + programs["from_cache"]
    assert all(0 <= step.began <= step.ended <= found.seconds for step in found.compiled)


def test_members_of_a_trial_are_that_trial() -> None:
    tuner = search(3, call={"repeats": 2})
    assert epochs_by_trial(read_timelines(Path("runs/s"))) == {
        number: 2 * tuner.trial(number).epochs for number in range(3)
    }


@pytest.mark.slow
def test_trials_in_fit_are_recorded_too() -> None:
    search(3, executor="fit")
    (found,) = read_timelines(Path("runs/s"))
    assert [(stay.trial, stay.epochs, stay.plan) for stay in found.stays] == [
        (number, 4, "fit") for number in range(3)
    ]
    assert_one_at_a_time(found.stays)


@pytest.mark.slow
def test_each_search_has_a_file_of_its_own() -> None:
    search(4)
    tuner = search(7)
    searches = read_timelines(Path("runs/s"))
    assert len(searches) == 2
    assert epochs_by_trial(searches) == {t.number: t.epochs for t in map(tuner.trial, range(7))}
    assert searches[0].begun.at < searches[1].begun.at


def test_a_folder_that_cannot_hold_it_costs_nothing_but_the_record() -> None:
    notes: list[str] = []
    Path("runs/s").mkdir(parents=True)
    Path("runs/s", TIMELINE).write_text("a file where a folder should be")
    tuner = paceline.Tuner(toys.dense, study="s", sampler="random", on_note=notes.append)
    tuner.search(*toys.data(), n_trials=3, **CALL)
    assert len(tuner.results()) == 3
    assert [note for note in notes if "slot timeline of this search is no longer recorded" in note]


def test_a_report_and_the_slots_of_a_search() -> None:
    tuner = search(12, parallel_trials=4)
    path = tuner.report()
    assert path == Path("report.html")
    text = path.read_text(encoding="utf-8")
    assert 'id="slots"' in text
    assert f"Trial {tuner.best_trial.number} has the highest val_accuracy" in text
    figure = tuner.plot.slots()
    assert "the best trial" in {trace.name for trace in figure.data}
    assert tuner.report("again.html", compare="s").stat().st_size > path.stat().st_size


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("report.txt", "must end in .html"),
        pytest.param("nowhere/report.html", "does not exist. Create it", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_any_work(path, why) -> None:
    tuner = search(1)
    with pytest.raises(UsageError, match=why):
        tuner.report(path)


def test_a_study_whose_searches_recorded_nothing_has_no_slots_to_draw() -> None:
    tuner = search(2)
    for path in Path("runs/s", TIMELINE).iterdir():
        path.unlink()
    with pytest.raises(paceline.StudyError, match="recorded its slots in this folder"):
        tuner.plot.slots()
    assert "no record of where" in tuner.report().read_text(encoding="utf-8")


def test_a_search_that_is_watched_says_what_it_does(monkeypatch) -> None:
    monkeypatch.setattr(LiveWriter, "EVERY", 0.0)
    monkeypatch.setattr("paceline.tuner.search.progress.BETWEEN_LOOKS", 0.0)
    folder = Path("runs/s")
    folder.mkdir(parents=True)
    watch(folder)
    seen: list[LiveState | None] = []
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        sampler="random",
        parallel_trials=2,
        on_progress=lambda progress: seen.append(read_live(folder)),
        on_note=lambda text: None,
    )
    tuner.search(*toys.data(), n_trials=6, **CALL)
    slots = [slot for state in seen if state for pack in state.packs for slot in pack.slots]
    assert {slot.trial for slot in slots if slot} <= set(range(6))
    assert len({slot.trial for slot in slots if slot}) >= 2
    assert all(slot.epoch <= slot.epochs == 4 for slot in slots if slot)
    last = read_live(folder)
    assert last is not None
    assert (last.progress.phase, last.progress.n_complete, last.packs) == ("done", 6, [])
    assert last.progress.best_number == tuner.best_trial.number


def test_a_search_that_nobody_watches_writes_no_state() -> None:
    search(3)
    assert read_live(Path("runs/s")) is None


@pytest.mark.parametrize("objective", ["val_accuracy", ["val_accuracy", "params"]])
def test_what_a_search_does_has_the_front_of_several_objectives(objective) -> None:
    folder = Path("runs/s")
    folder.mkdir(parents=True)
    watch(folder)
    tuner = paceline.Tuner(
        toys.dense,
        objective=objective,
        study="s",
        sampler="random",
        on_progress=lambda progress: watch(folder),
        on_note=lambda text: None,
    )
    tuner.search(*toys.data(), n_trials=6, **CALL)
    last = read_live(folder)
    assert last is not None
    front = tuner.pareto()
    assert last.progress.n_front == (0 if isinstance(objective, str) else len(front))
    best = last.progress.best_number, last.progress.objective
    assert best == (front[0].number, "val_accuracy")
