"""Files of checkpoints: whole or not there, and the one before where the newest is damaged."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from paceline.errors import StudyError, UsageError
from paceline.tuner.checkpoint import files as checkpoint
from paceline.tuner.checkpoint.files import CheckpointManager, SavePolicy, Snapshot, seconds_between
from paceline.tuner.search.checkpointer import SearchFacts


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, notes: list[str]) -> CheckpointManager:
    return CheckpointManager(tmp_path / "checkpoints", notes.append)


def snapshot(number: int) -> Snapshot:
    return Snapshot({"number": number, "rate": 0.1}, {"a": np.full((2, 3), number, np.float32)})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_last_one_comes_back(checkpoints: CheckpointManager) -> None:
    for number in range(3):
        checkpoints.save(snapshot(number))
    checkpoints.flush()
    found = checkpoints.load()
    assert found is not None
    assert found.facts == {"number": 2, "rate": 0.1}
    np.testing.assert_array_equal(found.arrays["a"], snapshot(2).arrays["a"])


def test_two_are_kept(checkpoints: CheckpointManager, tmp_path: Path) -> None:
    for number in range(5):
        checkpoints.save(snapshot(number))
    checkpoints.close()
    assert [name[:17] for name in files(tmp_path)] == ["checkpoint-000004", "checkpoint-000005"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)])
def test_arrays_keep_shape_type_and_bits(dtype: str, shape: tuple[int, ...], checkpoints) -> None:
    values = np.random.default_rng(0).integers(0, 2, (*shape, 2))[..., 0]
    array = np.asarray(jnp.asarray(values)).astype(jnp.dtype(dtype))
    strided = np.stack([array, array], axis=-1)[..., 0]  # not contiguous
    checkpoints.save(Snapshot({}, {"a": array, "b": strided}))
    checkpoints.flush()
    found = checkpoints.load()
    assert found is not None
    for name in ("a", "b"):
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == shape
        assert found.arrays[name].tobytes() == array.tobytes()


class Owner(msgspec.Struct):
    """Facts that have arrays among them."""

    rate: float
    by_number: dict[int, list[np.ndarray]]
    none: np.ndarray | None = None


def test_facts_may_have_arrays_and_numbers_as_keys(checkpoints) -> None:
    array = np.asarray(jnp.arange(3, dtype="bfloat16"))
    facts = Owner(np.float64("nan"), {7: [array, np.float32(2.5)], 8: []})
    checkpoints.save(Snapshot(facts, {"a": np.ones(2)}).encoded())
    facts.by_number.clear()
    checkpoints.flush()
    found = checkpoints.load()
    assert found is not None
    read = found.decoded(Owner).facts
    assert math.isnan(read.rate) and read.none is None
    (one, two) = read.by_number.pop(7)
    assert (one.dtype, one.tobytes()) == (array.dtype, array.tobytes())
    assert (two.dtype, two.shape, float(two)) == (np.float32, (), 2.5)
    assert read.by_number == {8: []}
    found.facts["by_number"]["7"][0] = "another"
    with pytest.raises(msgspec.ValidationError, match="there is no array 'another'"):
        found.decoded(Owner)


def beside(tmp_path: Path) -> dict[str, int]:
    """Files of paused trials, and what tells one writing from another."""
    found = (tmp_path / "checkpoints").glob("paused-*")
    return {path.name: path.stat().st_ino for path in found}


def test_what_lasts_is_written_once_and_as_long_as_it_is_needed(checkpoints, tmp_path) -> None:
    paused = {key: {f"wait.{key}": np.full(3, key, np.float32)} for key in ("0.0", "7.1", "7.2")}
    there = []
    for keys in (["0.0"], ["0.0", "7.1"], ["7.1"], ["7.2"], []):
        checkpoints.save(Snapshot({}, {"a": np.ones(2)}, {key: paused[key] for key in keys}))
        checkpoints.flush()
        there.append(beside(tmp_path))
        found = CheckpointManager(tmp_path / "checkpoints", print).load()
        assert found is not None
        assert set(found.arrays) == {"a", *(f"wait.{key}" for key in keys)}
        for key in keys:
            np.testing.assert_array_equal(found.arrays[f"wait.{key}"], np.full(3, key, np.float32))
    # Of two checkpoints each; the numbers of what stayed are those of its first writing.
    assert [sorted(name[7:10] for name in names) for names in there] == [
        ["0.0"],
        ["0.0", "7.1"],
        ["0.0", "7.1"],
        ["7.1", "7.2"],
        ["7.2"],
    ]
    assert there[0].items() <= there[1].items()
    assert there[1] == there[2]
    checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_a_checkpoint_is_no_better_than_what_is_beside_it(
    damage: str, checkpoints, tmp_path, notes
) -> None:
    checkpoints.save(snapshot(0))
    checkpoints.save(Snapshot({"number": 1}, {}, {"4.0": {"a": np.ones(3)}}))
    checkpoints.flush()
    (name,) = beside(tmp_path)
    path = tmp_path / "checkpoints" / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = checkpoints.load()
    assert found is not None
    assert found.facts["number"] == 0
    assert f"needs {name}, which " in notes[0]
    assert "using the one before" in notes[0]


def test_a_checkpoint_names_no_file_elsewhere(checkpoints, tmp_path, notes) -> None:
    checkpoint.save_checkpoint(tmp_path, "paused-1.0", Snapshot({}, {"a": np.ones(1)}))
    (other,) = tmp_path.glob("paused-*")
    folder = tmp_path / "checkpoints"
    checkpoint.save_checkpoint(
        folder, "checkpoint-000001", snapshot(0), shared=[f"../{other.name}"]
    )
    assert checkpoints.load() is None
    assert "names a file that is none of a checkpoint's: there is no other" in notes[0]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_one_is_passed_over(
    damage: str, checkpoints: CheckpointManager, tmp_path: Path, notes: list[str]
) -> None:
    for number in range(2):
        checkpoints.save(snapshot(number))
    checkpoints.flush()
    newest = tmp_path / "checkpoints" / files(tmp_path)[-1]
    whole = newest.read_bytes()
    if damage == "flip":
        newest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "cut":
        newest.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        newest.unlink()
    found = checkpoints.load()
    assert found is not None
    assert found.facts["number"] == 0
    said = [note for note in notes if "is damaged: using the one before" in note]
    assert len(said) == (damage != "gone")


def test_all_damaged_is_none_and_said(checkpoints, tmp_path, notes) -> None:
    checkpoints.save(snapshot(0))
    checkpoints.flush()
    (tmp_path / "checkpoints" / files(tmp_path)[0]).write_bytes(b"{}")
    assert checkpoints.load() is None
    assert "there is no other" in notes[0]


def test_another_format_is_not_read(checkpoints, notes, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 9)
    checkpoints.save(snapshot(0))
    checkpoints.flush()
    monkeypatch.undo()
    assert checkpoints.load() is None
    assert "has format 9, not 6 (continue with" in notes[0]


def test_other_files_do_no_harm(checkpoints, tmp_path) -> None:
    checkpoints.save(snapshot(7))
    checkpoints.flush()
    folder = tmp_path / "checkpoints"
    for name in ("notes.txt", "checkpoint-9.safetensors", "checkpoint-000009-xyz.safetensors"):
        (folder / name).write_text("no")
    found = checkpoints.load()
    assert found is not None
    assert found.facts["number"] == 7
    checkpoints.clear()
    assert len(list(folder.iterdir())) == 3  # what is not ours stays


def test_what_a_killed_process_left_half_written_is_removed(checkpoints, tmp_path) -> None:
    checkpoints.save(snapshot(0))
    checkpoints.flush()
    (tmp_path / "checkpoints" / ".tmpHalf").write_bytes(b"half")
    checkpoints.save(snapshot(1))
    checkpoints.flush()
    assert all(not name.startswith(".") for name in files(tmp_path))


def test_cleared_leaves_no_folder(checkpoints, tmp_path) -> None:
    checkpoints.save(snapshot(0))
    checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()
    assert checkpoints.load() is None


def test_a_full_disk_is_said_once_and_keeps_the_one_before(
    checkpoints, tmp_path, notes, monkeypatch
) -> None:
    checkpoints.save(snapshot(0))
    checkpoints.flush()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", full)
    for number in (1, 2):
        checkpoints.save(snapshot(number))
        checkpoints.flush()
    assert len(notes) == 1
    assert "No space left" in notes[0]
    found = checkpoints.load()
    assert found is not None
    assert found.facts["number"] == 0
    assert len(files(tmp_path)) == 1


FACTS = {
    "study": {
        **{"next": 0, "queue": [], "given": [], "points": [], "open": {}, "session": ""},
        "structure_order": {
            "numbers": [],
            "leader": None,
            "asked": 0,
            "under_way": [],
            "draws": [],
        },
    },
    **{"packs": None, "trial_epochs": 0, "n_begun": 0, "pruner": None, "succeeded": 0},
    **{"fit": None, "n_extra": 0, "limit": [None, None], "carried_over": None, "steps_due": 0},
    **{"continued": None, "to_continue": [], "trials": {"4": {"epochs": 3}}, "best": {}},
}


def test_a_checkpoint_whose_facts_are_not_of_the_schema_is_refused(checkpoints, notes) -> None:
    policy = SavePolicy(checkpoints, {"epochs": 3})
    policy.save(Snapshot({**FACTS, "trials": {"4": {"epochs": "three"}}}))
    checkpoints.flush()
    match = (
        r"trials\[\.\.\.\].epochs: expected int, got str\). Continue with the version .* or remove"
    )
    with pytest.raises(StudyError, match=match):
        policy.load(SearchFacts, notes.append)


def test_a_policy_goes_on_with_its_own_kind_only(checkpoints, notes) -> None:
    policy = SavePolicy(checkpoints, {"epochs": 3, "seed": 0})
    assert policy.due
    with policy.timed():
        policy.save(Snapshot(dict(FACTS)))
    assert not policy.due
    checkpoints.flush()
    assert policy.load(SearchFacts, notes.append) is not None
    assert notes == []
    assert SavePolicy(checkpoints, {"epochs": 4, "seed": 0}).load(SearchFacts, notes.append) is None
    assert "(epochs)" in notes[0]


def test_seconds_between_checkpoints(monkeypatch) -> None:
    assert seconds_between() == 60.0
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    assert seconds_between() == 0.0
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", wrong)
        with pytest.raises(UsageError, match="PACELINE_CHECKPOINT_SECONDS"):
            seconds_between()


def test_a_file_of_another_kind_that_is_being_written_is_left_alone(tmp_path):
    """``stuck.json`` lies among the checkpoints; another thread or process may be writing it."""
    ours, theirs = tmp_path / ".tmp-1-2-3-checkpoint-000001", tmp_path / ".tmp-1-2-4-stuck.json"
    ours.touch()
    theirs.touch()
    checkpoint.save_checkpoint(tmp_path, "checkpoint-000002", snapshot(0))
    assert not ours.exists()
    assert theirs.exists()


def test_checkpoints_that_cannot_be_removed_are_told_of(checkpoints, tmp_path, notes, monkeypatch):
    """The folder was turned read-only while the search ran; it has come to its end all the same."""
    checkpoints.save(Snapshot({"n": 1}, {}))
    checkpoints.flush()

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        checkpoints.clear()
    assert "Read-only file system. This is harmless: the next search" in notes[-1]
    assert checkpoints.load() is not None
