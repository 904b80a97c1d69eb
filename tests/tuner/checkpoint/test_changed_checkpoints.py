"""Checkpoints, changed at random: a search goes on with what is whole, or says what is wrong.

The studies have every kind of facts. Checkpoints are named after their digests, so a change that
keeps the name is damage; here the names fit, as a stranger would make them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

import interrupted_studies
from mutations import STRANGE, Tally, changed, mutations, sizes
from paceline.errors import PacelineError
from paceline.study.study import Study
from paceline.tuner.checkpoint.files import CheckpointManager, SavePolicy
from paceline.tuner.search.checkpointer import SearchFacts
from stopping import hears_signals  # noqa: F401 - a fixture

#: Cases whose trials are in a journal and whose checkpoints are of different kinds.
NAMES = ("asha", "callbacks", "families", "fit", "hyperband", "repeats")


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the arrays."""
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def whole(header: dict[str, Any], arrays: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + arrays


def changed_checkpoint(data: bytes, draw: random.Random) -> bytes:
    """A file with one change of its facts, or of what is said about them."""
    header, arrays = parts(data)
    held = json.loads(header["__metadata__"]["paceline"])
    if draw.random() < 0.1:
        held = changed(held, draw)
    else:
        key = draw.choice(["study", "packs", "trials", "best", *held["facts"]])
        if isinstance(held["facts"][key], dict | list) and held["facts"][key]:
            held["facts"][key] = changed(held["facts"][key], draw)
        else:
            held["facts"][key] = draw.choice(STRANGE)
    header["__metadata__"]["paceline"] = json.dumps(held)
    return whole(header, arrays)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of the study of a case, which is searched when it is first asked for."""
    folder, searched = tmp_path_factory.mktemp("written"), tmp_path_factory.mktemp("searched")

    def study(name: str) -> Path:
        if not (folder / name).exists():
            with contextlib.chdir(searched):
                interrupted_studies.write(name, folder)
        return folder / name

    return study


class Studies:
    """The cases in the working folder, one at a time, with a changed checkpoint each."""

    def __init__(self, written: Callable[[str], Path]) -> None:
        self.name, self.written = "", written

    def put(self, name: str, change: Any, draw: random.Random) -> dict[str, Any]:
        """Put a case with a changed checkpoint there; returns the key of its searches."""
        old, folder = self.written(name), Path("runs/s")
        if self.name != name:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            shutil.copy(old / "journal.log", folder)
            self.name = name
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        shutil.copytree(old / "checkpoints", folder / "checkpoints")
        *_, first = sorted((folder / "checkpoints").glob("checkpoint-*"))
        for path in (folder / "checkpoints").glob("checkpoint-*"):
            data = path.read_bytes()
            path.unlink()
            if path == first:
                key = json.loads(parts(data)[0]["__metadata__"]["paceline"])["facts"]["key"]
                data = change(data, draw)
                digest = hashlib.sha256(data).hexdigest()[:16]
                path.with_name(f"checkpoint-000009-{digest}.safetensors").write_bytes(data)
        return key


@sizes(20, 1500)
def test_a_changed_checkpoint_is_read_or_refused(fresh_folder, written, n):
    """Up to the study that goes on from it: the trials under way are built in the next test."""
    names = NAMES if n > 20 else ("asha", "hyperband")  # each is searched first
    tally, studies = Tally(), Studies(written)
    for at, (change, draw) in enumerate(mutations(n, 5, changed_checkpoint)):
        name, notes = names[at % len(names)], list[str]()
        key = studies.put(name, change, draw)
        policy = SavePolicy(CheckpointManager(Path("runs/s/checkpoints"), notes.append), key)
        try:
            snapshot = policy.load(SearchFacts, notes.append)
            if snapshot is not None:
                facts = snapshot.facts.study
                Study("s", sampler=key["sampler"], seed=key["seed"], resumed=facts).close()
            code, said = (0, "") if snapshot is not None else (1, f"paceline: {notes}")
        except PacelineError as error:
            code, said = 2, f"paceline: {error}"
        except Exception as error:
            code, said = f"{type(error).__name__}: {error}", ""
        tally.count(code, said, f"mutation {at} of {name}")
    tally.finish("checkpoints")


# A search that is refused midway leaves the files of its callbacks to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
def test_a_search_with_a_changed_checkpoint_ends_or_says_why(fresh_folder, written):
    tally, studies = Tally(), Studies(written)
    for at in range(60):
        name, draw = NAMES[at % len(NAMES)], random.Random(f"search {at}")
        studies.put(name, changed_checkpoint, draw)
        tuner = interrupted_studies.tuner(name)
        try:
            interrupted_studies.search(name, tuner)
            code, said = 0, ""
        except PacelineError as error:
            code, said = 2, f"paceline: {error}"
        except Exception as error:
            code, said = f"{type(error).__name__}: {error}", ""
        tally.count(code, said, f"mutation {at} of {name}")
        shutil.rmtree("runs")
        studies = Studies(written)
    tally.finish("searches")


def test_a_trial_that_waits_twice_waits_once(fresh_folder, written):
    def twice(data: bytes, draw: random.Random) -> bytes:
        header, arrays = parts(data)
        held = json.loads(header["__metadata__"]["paceline"])
        (group,) = held["facts"]["packs"]["groups"]
        assert group["queue"]
        group["queue"] += group["queue"]
        header["__metadata__"]["paceline"] = json.dumps(held)
        return whole(header, arrays)

    Studies(written).put("hyperband", twice, random.Random(0))
    tuner = interrupted_studies.tuner("hyperband")
    interrupted_studies.search("hyperband", tuner)
    assert set(tuner.results()["state"]) <= {"complete", "pruned"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("name", "key", "value", "why"),
    [
        ("asha", "n_extra", 2**31, "n_extra is 2147483648, but there are fewer trials"),
        ("asha", "pruner", [[1, [[0.5, "first"]], []]], "Expected `int`, got `str`"),
    ],
)
def test_facts_that_would_lead_astray_are_refused(
    name: str, key: str, value: Any, why: str, fresh_folder, written
) -> None:
    """Such a search would never end, or fail where nobody knows why."""

    def astray(data: bytes, draw: random.Random) -> bytes:
        header, arrays = parts(data)
        held = json.loads(header["__metadata__"]["paceline"])
        held["facts"][key] = value
        header["__metadata__"]["paceline"] = json.dumps(held)
        return whole(header, arrays)

    Studies(written).put(name, astray, random.Random(0))
    with pytest.raises(PacelineError, match=why):
        interrupted_studies.search(name, interrupted_studies.tuner(name))


def test_other_versions_of_libraries_are_told_of(fresh_folder, written) -> None:
    shutil.copytree(written("asha"), "runs/s")
    path, notes = Path("runs/s/journal.log"), list[str]()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        meta = line.get("user_attr", {}).get("paceline", {})
        if "versions" in meta:
            meta["versions"]["keras"] = "3.1.0"
            meta["compiled_with"] = {"xla_backend_extra_options": "another"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    interrupted_studies.search("asha", interrupted_studies.tuner("asha", on_note=notes.append))
    assert any(f"keras changed from 3.1.0 to {keras.__version__}" in note for note in notes)
    assert any(re.search("xla_backend_extra_options changed from another to", n) for n in notes)
