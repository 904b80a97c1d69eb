"""Checkpoints, changed at random: a search goes on with what is whole, or says what is wrong.

The files are those of earlier versions' studies, which have every kind of facts. They are named
after their digests, so a change that keeps the name is damage; here the names fit, as a stranger
would make them.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from mutations import STRANGE, Tally, changed, mutations, sizes
from old_studies import write
from paceline.errors import PacelineError
from paceline.study.study import Study
from paceline.tuner.checkpoint.files import CheckpointManager, SavePolicy

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


class Studies:
    """The cases in the working folder, one at a time, with a changed checkpoint each."""

    def __init__(self) -> None:
        self.name = ""

    def put(self, name: str, change: Any, draw: random.Random) -> dict[str, Any]:
        """Put a case with a changed checkpoint there; returns the key of its searches."""
        old, folder = write.HERE / name, Path("runs/s")
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
def test_a_changed_checkpoint_is_read_or_refused(fresh_folder, n):
    """Up to the study that goes on from it: the trials under way are built in the next test."""
    tally, studies = Tally(), Studies()
    for at, (change, draw) in enumerate(mutations(n, 5, changed_checkpoint)):
        name, notes = NAMES[at % len(NAMES)], list[str]()
        key = studies.put(name, change, draw)
        policy = SavePolicy(CheckpointManager(Path("runs/s/checkpoints"), notes.append), key)
        try:
            snapshot = policy.load(notes.append)
            if snapshot is not None:
                facts = snapshot.facts["study"]
                Study.open("s", sampler=key["sampler"], seed=key["seed"], resumed=facts).close()
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
def test_a_search_with_a_changed_checkpoint_ends_or_says_why(fresh_folder):
    tally, studies = Tally(), Studies()
    for at in range(60):
        name, draw = NAMES[at % len(NAMES)], random.Random(f"search {at}")
        studies.put(name, changed_checkpoint, draw)
        tuner = write.tuner(name)
        try:
            write.search(name, tuner)
            code, said = 0, ""
        except PacelineError as error:
            code, said = 2, f"paceline: {error}"
        except Exception as error:
            code, said = f"{type(error).__name__}: {error}", ""
        tally.count(code, said, f"mutation {at} of {name}")
        shutil.rmtree("runs")
        studies = Studies()
    tally.finish("searches")
