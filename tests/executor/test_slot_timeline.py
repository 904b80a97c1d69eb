"""Which job was in which slot when, seen from outside the packs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from paceline.executor.training.reporting import SlotTimeline, compiled_steps
from paceline.program.compile import Executable


class Pack:
    """What the timeline looks at of a pack."""

    def __init__(self, *jobs: int | None) -> None:
        self.program = SimpleNamespace(plan="vectorized")
        self.slots: list[Any] = [None if j is None else SimpleNamespace(number=j) for j in jobs]


GROUP: Any = SimpleNamespace(name="ab12")


def round_of(timeline: SlotTimeline, *packs: Any, fails: set[int] | None = None) -> None:
    timeline.begin_round([(GROUP, pack) for pack in packs])
    jobs = {trial.number for pack in packs for trial in pack.slots if trial is not None}
    timeline.end_round(packs, jobs - (fails or set()))


def stays(timeline: SlotTimeline, **options: Any) -> list[tuple[int, int, int, int]]:
    found, _ = timeline.take(**options)
    return [(stay.trial, stay.pack, stay.slot, stay.epochs) for stay in found]


def test_a_stay_ends_when_the_job_has_left() -> None:
    timeline, pack = SlotTimeline(), Pack(5, 6)
    round_of(timeline, pack)
    assert stays(timeline) == []
    pack.slots[0] = SimpleNamespace(number=7)
    round_of(timeline, pack)
    assert stays(timeline) == [(5, 0, 0, 1)]
    assert sorted(stays(timeline, all_ended=True)) == [(6, 0, 1, 2), (7, 0, 0, 1)]
    assert stays(timeline, all_ended=True) == []


def test_a_job_that_comes_back_has_another_stay() -> None:
    timeline, pack = SlotTimeline(), Pack(5)
    (trial,) = pack.slots
    round_of(timeline, pack)
    pack.slots[0] = None
    round_of(timeline, Pack(8))
    pack.slots[0] = trial
    round_of(timeline, pack)
    assert stays(timeline, all_ended=True) == [(5, 0, 0, 1), (8, 1, 0, 1), (5, 0, 0, 1)]


def test_moments_are_those_of_the_rounds() -> None:
    timeline, pack = SlotTimeline(), Pack(5)
    round_of(timeline, pack)
    round_of(timeline, pack)
    (stay,), (made,) = timeline.take(all_ended=True)
    assert stay.began < stay.ended
    assert made.began == stay.began
    assert (made.pack, made.slots, made.program, made.plan) == (0, 1, "ab12", "vectorized")


def test_a_job_without_an_epoch_was_in_no_slot() -> None:
    timeline, pack = SlotTimeline(), Pack(5, 6)
    round_of(timeline, pack, fails={5})
    assert stays(timeline, all_ended=True) == [(6, 0, 1, 1)]


def test_a_job_whose_number_is_anothers_now_is_left_out() -> None:
    timeline, pack = SlotTimeline(), Pack(5, 6)
    round_of(timeline, pack)
    timeline.forget(range(5, 6))
    round_of(timeline, pack)
    assert stays(timeline, all_ended=True) == [(6, 0, 1, 2)]


def test_stays_that_nobody_takes_do_not_pile_up(monkeypatch) -> None:
    monkeypatch.setattr(SlotTimeline, "MOST", 3)
    timeline = SlotTimeline()
    for job in range(10):
        round_of(timeline, Pack(job))
    found, packs = timeline.take(all_ended=True)
    assert (len(found), len(packs)) == (3, 3)


def test_each_compiled_step_is_told_once() -> None:
    step, other = Executable(print, 2.0, True, ended=10.0), Executable(print, 1.0, False, ended=9.0)

    def program(*roles: list[Executable], ready: bool = True) -> Any:
        return SimpleNamespace(
            plan="vectorized", n_slots=4, ready=lambda: ready, roles=lambda: list(roles)
        )

    first, second = program([step], [other]), program([step])
    group: Any = SimpleNamespace(name="ab12", program=second, next_program=None)
    found = compiled_steps([first, second, program([other], ready=False)], [group])
    assert [(s.program, s.began, s.ended, s.from_cache, s.slots) for s in found.values()] == [
        ("ab12", 8.0, 10.0, True, 4),
        (None, 8.0, 9.0, False, 4),
    ]
