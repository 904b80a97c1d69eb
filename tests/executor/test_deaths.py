"""What is done after processes have died: which trial has failed, and how many train at once."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import TrialCrashError
from paceline.executor.wall import black_box, deaths
from paceline.executor.wall.black_box import BlackBox
from paceline.executor.wall.deaths import Death, DeathRecord, OutOfMemoryKills, is_fault, largest
from paceline.executor.wall.guard import TrialGuard, guard_of_process
from paceline.search_space import HyperParameters

KILL, SEGV = -9, -11
LARGE = (7, {"units": 900_000_000, "lr": 0.1})


def died(*trials: Any, code: int = KILL, **more: Any) -> Death:
    return Death(code, **{"memory": False, "begun": True, "trials": trials} | more)


def many(n: int) -> list[Any]:
    return [(number, {"units": number}) for number in range(n)]


def test_the_first_kill_may_be_chance() -> None:
    record = DeathRecord([died(*many(16))])
    assert record.precautions == deaths.Precautions()
    assert record.note() == (
        "the training process was killed (SIGKILL), possibly because memory ran out. "
        "A new process continues from the last checkpoint"
    )


def test_fewer_and_fewer_train_at_once() -> None:
    record = DeathRecord([died(*many(16), memory=True)])
    assert (record.precautions.at_once, record.precautions.alone) == (4, False)
    assert record.note().endswith("from the last checkpoint with at most 4 trials at once")
    record.deaths.append(died(*many(6), memory=True))
    assert (record.precautions.at_once, record.precautions.alone) == (1, True)
    assert record.note().endswith("with one trial at a time")
    record.deaths.append(died(memory=True))  # nothing was under way
    assert record.precautions.alone and not record.precautions.killers


@pytest.mark.parametrize("code", [KILL, SEGV])
def test_a_trial_that_kills_twice_alone_has_failed(code: int) -> None:
    record = DeathRecord([died(*many(4), LARGE, code=code), died(*many(3), LARGE, code=code)])
    assert record.precautions.alone
    record.deaths.append(died(LARGE, code=code, alone=True))
    assert not record.precautions.killers
    record.deaths.append(died(LARGE, code=code, alone=True))
    (hparams, why), *others = record.precautions.killers
    assert hparams == LARGE[1] and not others
    assert "2 times with only this trial in the process" in why
    assert ("Its largest hyperparameters: units=900,000,000." in why) == (code == KILL)
    assert ("Its hyperparameters: units=900000000, lr=0.1" in why) == (code == SEGV)
    # The others train as before. After the next one, trials train alone until the end.
    assert record.precautions.at_once is None
    assert record.note().endswith("The trial that was alone in the process fails")
    other = (9, {"units": 9})
    record.deaths += [died(other, *many(2)), died(other, alone=True), died(other, alone=True)]
    assert len(record.precautions.killers) == 2 and record.precautions.alone


def test_trials_that_wait_in_memory_may_be_the_reason() -> None:
    """Those of a checkpoint are all there; so it is not used, and they begin again one by one."""
    record = DeathRecord([died(*many(4), memory=True)])
    assert record.precautions.alone and not record.precautions.afresh
    record.deaths += [died(LARGE, alone=True, beside=3, memory=True)] * 2
    assert record.precautions.afresh and not record.precautions.killers
    record.deaths.append(died(LARGE, alone=True, memory=True))
    assert len(record.precautions.killers) == 1 and not record.precautions.afresh


def test_a_trial_beside_which_something_may_have_been_under_way_is_not_guilty() -> None:
    record = DeathRecord([died(LARGE), died(LARGE), died(LARGE)])
    assert record.precautions.alone and not record.precautions.killers


def test_nobody_goes_on_for_ever() -> None:
    record = DeathRecord()
    for n in range(12):
        assert not record.hopeless, n
        record.deaths.append(died(*many(2), well=3))
    assert record.hopeless and record.note().endswith(
        "It died 12 times in this search, which stops now"
    )
    assert "parallel_trials=1" in record.what_to_do
    record.deaths.append(died(*many(2), well=4))
    assert not record.hopeless


def test_a_search_that_has_not_begun_is_tried_twice() -> None:
    record = DeathRecord([died(LARGE, begun=False)])
    assert not record.hopeless
    record.deaths.append(died(LARGE, begun=False))
    assert record.hopeless
    assert record.what_to_do.startswith("No trial had started: ")


def test_which_ends_are_faults() -> None:
    assert [code for code in range(-31, 3) if is_fault(code)] == [
        -31, -11, -9, -8, -7, -6, -5, -4,
    ]  # fmt: skip
    assert not is_fault(None) and not is_fault(-64)


def test_a_hyperparameter_that_is_a_size_is_named_alone() -> None:
    hparams = {"units": 4_000_000, "batch": 1024, "lr": 0.1, "deep": True, "n": 3}
    assert largest(hparams) == "units=4,000,000, batch=1,024"
    assert largest(hparams, (64, 12_000_000)) == "units=4,000,000"
    assert largest(hparams, (64, 7)) == "units=4,000,000, batch=1,024"
    assert largest({"n": 3}) == ""


def test_a_black_box_is_read_after_the_death_of_who_wrote_it() -> None:
    box = BlackBox()
    code = """
import os, signal, sys
from paceline.executor.wall.black_box import BlackBox
box = BlackBox(int(sys.argv[1]))
box.begin(24)
box.ends_at(12.5)
box.alone(alone=True)
box.builds(3, {"units": 4})
box.builds(None, {})
box.trains([3, 4])
box.count(2)
box.builds(5, {"units": float("inf"), "kind": "a\\nb"})
os.kill(os.getpid(), signal.SIGKILL)
"""
    words = [sys.executable, "-c", code, str(box.descriptor)]
    done = subprocess.run(words, pass_fds=[box.descriptor], check=False)
    death = Death.of(done.returncode, box.state(), memory=False)
    assert death == Death(
        KILL,
        memory=False,
        trials=((3, {"units": 4}), (4, {}), (5, {"units": float("inf"), "kind": "a\nb"})),
        alone=True,
        begun=True,
        well=2,
    )
    box.deaths = [death.to_json()]
    assert [Death.of_json(each) for each in box.deaths] == [death]
    box.clear()
    after = BlackBox(box.descriptor)  # of the next process
    assert after.state() == {"begun": {"n_trials": 24}, "ends_at": 12.5}
    after.begin(99)
    assert after.begun == {"n_trials": 24}
    os.close(box.descriptor)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]\n", b'{"training": [], "building": [1]}\n', b"\xff\n"]
)
def test_half_a_note_is_none(body: bytes) -> None:
    box = BlackBox()
    os.pwrite(box.descriptor, body, 0)
    assert Death.of(KILL, box.state(), memory=False) == Death(KILL, memory=False)
    os.close(box.descriptor)


def test_without_memory_that_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: a file that was removed stands for it."""
    monkeypatch.delattr(os, "memfd_create")
    descriptor = black_box.nameless_file()
    box = BlackBox(descriptor)
    box.trains([1])
    assert box.state() == {"training": [[1, {}]], "beside": 0}
    os.close(descriptor)


def test_a_build_is_noted_value_by_value_and_a_killer_stops_at_its_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box, seen = BlackBox(), []
    monkeypatch.setattr(BlackBox, "current", box)
    assert guard_of_process().precautions == deaths.Precautions()
    killer = (5, {"a": 3, "b": 7})
    box.deaths = [died(killer, alone=True).to_json() for _ in range(2)]
    guard = guard_of_process()
    guard.running = {1: None, 2: None}
    assert box.state() == {"alone": False}

    def build(number: int, b: int) -> None:
        hp = HyperParameters(values={"a": 3, "b": b})
        with guard.tracing(1, {"a": 1}):
            with guard.building(number, hp):
                hp.Int("a", 0, 9)
                seen.append(box.state()["building"])
                hp.Int("b", 0, 9)
            seen.append(box.state()["building"])
        assert box.state()["building"] is None

    build(8, 6)
    assert box.state()["beside"] == 1
    guard.trains([1, 2])
    assert box.state()["beside"] == 0
    assert seen == [[8, {"a": 3}], [1, {"a": 1}]]
    with pytest.raises(TrialCrashError, match="2 times with only this trial"):
        build(9, 7)
    assert box.state()["building"] is None
    os.close(box.descriptor)


def test_hyperparameters_that_are_watched_can_be_copied_and_pickled() -> None:
    hp = HyperParameters(values={"a": 3})
    hp.on_value = lambda: None
    hp.Int("a", 0, 9)
    for again in (copy.copy(hp), copy.deepcopy(hp)):  # as pickle does it
        assert again.hparams == {"a": 3} and again.on_value is None
    assert hp.on_value is not None


def test_without_a_black_box_nothing_is_noted() -> None:
    hp, guard = HyperParameters(), TrialGuard()
    with guard.building(1, hp), guard.tracing(1, {}):
        hp.Int("a", 0, 9)
    guard.trains([1])
    guard.ended(1, 1)
    guard.begin(4)
    assert hp.on_value is None


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("0::/mine", "sys/fs/cgroup/mine/memory.events"),
        ("0::/outside", "sys/fs/cgroup/memory.events"),
        ("4:memory:/mine", "sys/fs/cgroup/memory/mine/memory.oom_control"),
        ("9:name=systemd:/", "proc/vmstat"),
    ],
)
def test_kills_by_the_system_are_counted(tmp_path: Path, line: str, where: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("low 0\noom 7\noom_kill 1\noom_kill_other 9\n")
    kills = OutOfMemoryKills(tmp_path)
    assert not kills.happened()
    path.write_text("oom_kill 2\n")
    assert kills.happened() and not kills.happened()
    assert not OutOfMemoryKills(tmp_path / "none").happened()
