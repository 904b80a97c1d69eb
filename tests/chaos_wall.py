"""The command's own process, killed from outside at a random moment: a case of ``chaos.py``.

The command goes on by itself: it must end as if nothing had been, with the same trials to the bit.
A search is killed once: after a second kill, fewer trials train at once, in other programs.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paceline.study.study import Study

FILE = """\
import sys
sys.path.insert(0, {tests!r})
import chaos
build = chaos.structures


def data():
    return (chaos.X, chaos.Y), chaos.VALIDATION
"""
WORDS = ("search", "model.py", "--trials", "14", "--epochs", "6", "--parallel-trials", "4")


def _search(folder: Path, kill_after: float | None) -> tuple[list[object], bool, float]:
    """The trials of a search, whether it was killed, and its seconds."""
    folder.mkdir()
    (folder / "model.py").write_text(FILE.format(tests=str(Path(__file__).parent)))
    began, killed = time.monotonic(), False
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", *WORDS, "--quiet"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        while kill_after is not None and command.poll() is None and not killed:
            time.sleep(0.02)
            # Before the search has begun, a kill has nothing to go back to, and begins it again.
            if time.monotonic() - began > kill_after:
                killed = _kill_child(command.pid)
        _, said = command.communicate(timeout=600)
    assert command.returncode == 0, said
    study = Study("model", directory=folder / "runs")
    trials = [(t.number, t.state, t.hparams, t.seed, repr(t.history)) for t in study.trials]
    return [*trials], killed, time.monotonic() - began


def _kill_child(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        path = Path(f"/proc/{pid}/task/{pid}/children")
        os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
        return True
    return False


def check(kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """How often searches were killed, and what differs."""
    folder, killed, lines = Path(tempfile.mkdtemp(prefix="paceline-chaos-")), 0, list[str]()
    try:
        _search(folder / "compiles", None)
        expected, _, seconds = _search(folder / "whole", None)
        for n in range(kills):
            found, was_killed, _ = _search(folder / str(n), rng.uniform(0.2, 1.0) * seconds)
            killed += was_killed
            lines += [f"{a} and {b}" for a, b in zip(expected, found, strict=False) if a != b]
            if len(found) != len(expected):
                lines.append(f"{len(expected)} trials and {len(found)}")
        return killed, lines
    finally:
        shutil.rmtree(folder, ignore_errors=True)
