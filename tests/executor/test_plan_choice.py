"""Plans are tried out where it pays, the fastest goes on, and the next search knows."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import keras
import numpy as np
import pytest

import paceline
from paceline.executor.training import planner, slots
from paceline.executor.training.planner import Candidate, PlanChoice, key_of, remembered
from paceline.program import compilation_cache

A, B, C = Candidate("vectorized", 8), Candidate("vectorized", 1), Candidate("looped", 8)
PLANS = ["vectorized", "looped"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(tmp_path / "own"))


def timed(costs: dict[Candidate, float], key: str = "k") -> PlanChoice:
    choice = PlanChoice([A, B, C], key)
    for candidate, cost in costs.items():
        for seconds in (99.0, cost, cost + 0.1):  # the first epoch is not one to go by
            choice.note(candidate, 1, seconds)
    return choice


def test_nothing_is_tried_before_the_present_plan_is_timed() -> None:
    choice = PlanChoice([A, B, C], "k")
    for _ in range(2):
        choice.note(A, 8, 1.0)
        assert choice.to_try(A, 10**9, 0.0) is None
    choice.note(A, 8, 1.0)
    assert choice.to_try(A, 10**9, 0.0) == B


def test_candidates_are_tried_in_turn_where_the_search_repays_it() -> None:
    choice = timed({A: 1.0})
    assert choice.to_try(A, 10**6, compile_seconds=10.0) == B
    assert choice.to_try(A, 100, compile_seconds=10.0) is None
    assert timed({A: 1.0, B: 2.0}).to_try(B, 10**6, 10.0) == C
    assert timed({A: 1.0, B: 2.0, C: 3.0}).to_try(C, 10**6, 10.0) is None


def test_the_fastest_is_taken_and_remembered() -> None:
    assert timed({A: 1.0, B: 0.5, C: 0.8}).settle(C) == B
    assert remembered("k", PLANS) == B
    assert remembered("k", ["looped"]) is None, "a plan that may not be taken"
    assert remembered("other", PLANS) is None


def test_a_small_gain_is_noise() -> None:
    assert timed({A: 1.0, B: 0.95}).settle(B) == A


def test_what_was_never_compared_is_not_remembered() -> None:
    assert timed({A: 1.0}).settle(A) == A
    assert remembered("k", PLANS) is None


@pytest.mark.parametrize(
    "body", [b"", b"3", b'["vectorized"]', b'["vectorized", -1]', b'[{}, "x"]']
)
def test_nonsense_is_not_believed(body: bytes) -> None:
    compilation_cache.DiskCache("plans", 9).write("k.json", body)
    assert remembered("k", PLANS) is None


def test_the_key_follows_what_decides() -> None:
    keys = {key_of("f", 32, 2, []), key_of("g", 32, 2, []), key_of("f", 64, 2, [])}
    assert len(keys | {key_of("f", 32, 1, []), key_of("f", 32, 2, [object()])}) == 5


def test_a_hopeless_candidate_is_timed_once() -> None:
    choice = timed({A: 1.0})
    choice.note(B, 1, 99.0)
    assert not choice.timed(B)
    choice.note(B, 1, 2.5)
    assert choice.timed(B)


def test_what_cannot_be_compiled_is_never_taken() -> None:
    choice = timed({A: 1.0})
    choice.rule_out(B)
    assert choice.to_try(A, 10**9, 0.0) == C
    choice.rule_out(C)
    assert choice.to_try(A, 10**9, 0.0) is None
    assert choice.settle(A) == A


RNG = np.random.default_rng(0)
X = RNG.random((64, 6)).astype("float32")
Y = np.arange(64) % 3


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        "sparse_categorical_crossentropy",
    )
    return model


def searched(name: str, notes: list[str] | None = None, **options) -> paceline.Tuner:
    tuner = paceline.Tuner(
        build,
        objective="val_loss",
        study=name.replace(" ", "-"),
        sampler="random",
        on_note=(notes if notes is not None else []).append,
        **options,
    )
    tuner.search(X, Y, validation_data=(X, Y), epochs=8, batch_size=16, n_trials=24)
    return tuner


def histories(tuner: paceline.Tuner) -> np.ndarray:
    return np.array([tuner.history(i)["val_loss"] for i in range(24)])


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "cores", lambda: 2)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Compiles are waited for: in searches this short none would be done in time."""
    made: list[Candidate] = []
    make = planner.Planner._make

    def waiting(self, group, candidate, *args):
        made.append(candidate)
        program = make(self, group, candidate, *args)
        program.roles()
        return program

    monkeypatch.setattr(planner.Planner, "_make", waiting)
    return made


@pytest.mark.slow
def test_trials_move_between_plans_without_losing_an_epoch(
    monkeypatch: pytest.MonkeyPatch, two_at_once: None, at_once: list[Candidate]
) -> None:
    monkeypatch.setattr(planner, "_REPAYS", 0.0)
    monkeypatch.setattr(
        planner.Planner, "_others", lambda *_: [Candidate("looped", 4), Candidate("vectorized", 2)]
    )
    # Whatever a clock says: the last candidate is the fastest.
    monkeypatch.setattr(
        PlanChoice, "cost", lambda self, candidate: 1 / (1 + self.candidates.index(candidate))
    )
    # Epochs this short are over before a trial is built; none is timed while that goes on.
    monkeypatch.setattr(slots.TrialDemand, "room", False)
    notes: list[str] = []
    moved = searched("moved", notes)
    assert moved.summary()["plans"] == ["looped", "vectorized"]
    assert not any("trials continue" in note for note in notes), "the last one tried is the fastest"
    fixed = searched("fixed", plan="vectorized", parallel_trials=8)
    np.testing.assert_allclose(histories(moved), histories(fixed), rtol=1e-5)


@pytest.mark.slow
def test_the_next_search_begins_with_the_answer(
    monkeypatch: pytest.MonkeyPatch, two_at_once: None, at_once: list[Candidate]
) -> None:
    original = planner.key_of
    keys: list[str] = []
    monkeypatch.setattr(planner, "key_of", lambda *args: keys.append(original(*args)) or keys[-1])
    assert searched("first").summary()["plans"] == ["vectorized"]
    compilation_cache.DiskCache("plans", 9).write(f"{keys[0]}.json", b'["vectorized", 2]')
    at_once.clear()
    again = searched("again")
    assert set(at_once) == {Candidate("vectorized", 2)}
    np.testing.assert_allclose(
        histories(again),
        histories(searched("as given", parallel_trials=2, plan="vectorized")),
        rtol=1e-5,
    )


def long_and_short(name: str, **options) -> paceline.Tuner:
    tuner = paceline.Tuner(
        build, objective="val_loss", study=name, sampler="random", on_note=[].append, **options
    )
    tuner.search(
        X,
        Y,
        validation_data=(X, Y),
        epochs=lambda hp: 12 if hp.Choice("long", [False, False, False, True]) else 2,
        batch_size=16,
        n_trials=16,
    )
    return tuner


@pytest.mark.slow
def test_a_pack_shrinks_when_no_more_trials_come(
    monkeypatch: pytest.MonkeyPatch, two_at_once: None, at_once: list[Candidate]
) -> None:
    monkeypatch.setattr(planner, "_compile_seconds", lambda program: 0.0)
    shrunk = long_and_short("shrunk")
    slots = [candidate.slots for candidate in at_once]
    assert slots[0] == 8
    assert slots[-1] < 8
    monkeypatch.setattr(planner, "_compile_seconds", lambda program: 1e9)
    at_once.clear()
    whole = long_and_short("whole")
    assert [candidate.slots for candidate in at_once] == [8]
    # Trials of both threads share one pack at the end.
    assert shrunk.summary()["slots_busy"] >= whole.summary()["slots_busy"] > 0.8
    for number in range(16):
        np.testing.assert_allclose(
            shrunk.history(number)["val_loss"], whole.history(number)["val_loss"], rtol=1e-5
        )


@pytest.mark.slow
def test_a_candidate_that_fails_to_compile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, two_at_once: None
) -> None:
    monkeypatch.setattr(planner, "_REPAYS", 0.0)
    monkeypatch.setattr(planner.Planner, "_others", lambda *_: [Candidate("looped", 4)])
    make = planner.Planner._make

    def broken(self, group, candidate, *args):
        program = make(self, group, candidate, *args)
        program.roles()
        if candidate.plan == "looped":
            failed = Future()
            failed.set_exception(RuntimeError("no such instruction"))
            program._programs[0][0] = failed, program._programs[0][0][1]
        return program

    monkeypatch.setattr(planner.Planner, "_make", broken)
    tuner = searched("broken")
    assert tuner.summary()["plans"] == ["vectorized"]
    assert tuner.summary()["n_trials"]["complete"] == 24


@pytest.mark.slow
def test_a_pack_grows_when_many_wait(
    monkeypatch: pytest.MonkeyPatch, two_at_once: None, at_once: list[Candidate]
) -> None:
    monkeypatch.setattr(planner, "_compile_seconds", lambda program: 0.0)
    first = planner.Planner._slots_for
    asked: list[int] = []

    def few_at_first(self, *args):
        asked.append(1)
        return 1 if len(asked) == 1 else first(self, *args)

    monkeypatch.setattr(planner.Planner, "_slots_for", few_at_first)
    grown = searched("grown")
    slots = [candidate.slots for candidate in at_once]
    assert slots[0] == 1
    assert max(slots) >= 4  # how many wait while a pack trains is a matter of time
    monkeypatch.setattr(planner.Planner, "_slots_for", first)
    np.testing.assert_allclose(histories(grown), histories(searched("whole")), rtol=1e-5)
