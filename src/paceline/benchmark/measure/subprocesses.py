"""Measures on several devices and Keras backends, each in a process of its own.

A process cannot change its device or its backend: JAX chooses devices once, and Keras chooses its
backend once. A TPU or a GPU that one process holds is not free for the next process. So the process
that starts the others uses no device itself.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.benchmark.presentation.result import Bench, load
from paceline.errors import MissingExtraError, PacelineError, UsageError

#: The user's name of a device -> the name that the variable JAX_PLATFORMS takes.
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
BACKENDS = {
    "jax": 'pip install "jax"',
    "tensorflow": 'pip install "paceline[tensorflow]"',
    "torch": "pip install torch",
}
_MAIN = "from paceline.cli.app import main; main()"
#: Seconds that an interrupted process gets to write its measurements.
_PATIENCE = 60.0


@dataclass(frozen=True)
class BenchTarget:
    """A device and a Keras backend to measure on, in one process."""

    device: str | None  # "cpu", "gpu" or "tpu"; None: the device that JAX finds
    backend: str

    def __str__(self) -> str:
        return ", ".join(each for each in (self.device, self.backend) if each)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of the process that measures here, from that of this process."""
        found = {**base, "KERAS_BACKEND": self.backend}
        if self.backend != "jax":
            found["JAX_PLATFORMS"] = "cpu"  # JAX must not take the device that the backend needs
            if self.device == "cpu":
                found["CUDA_VISIBLE_DEVICES"] = ""
        elif self.device is not None:
            found["JAX_PLATFORMS"] = PLATFORMS[self.device]
            found["PACELINE_FALLBACK"] = "no"  # figures of another device would mislead
        return found


def places(devices: Sequence[str] | None, backends: Sequence[str] | None) -> list[BenchTarget]:
    """Returns all combinations of devices and backends.

    No ``devices`` stand for the one that JAX finds, no ``backends`` for JAX. Raises
    MissingExtraError if a backend is not installed.
    """
    for device in devices or ():
        if device not in PLATFORMS:
            raise UsageError(f"--devices must be one of {', '.join(PLATFORMS)}, got {device!r}")
    for backend in backends or ():
        if backend not in BACKENDS:
            raise UsageError(
                f"--keras-backends must be one of {', '.join(BACKENDS)}, got {backend!r}"
            )
        if importlib.util.find_spec(backend) is None:
            raise MissingExtraError(
                f"--keras-backends: {backend} is not installed; {BACKENDS[backend]}"
            )
    if devices and "tpu" in devices and any(each != "jax" for each in backends or ()):
        raise UsageError(
            "--keras-backends: Paceline measures a TPU with jax only. Measure the others without "
            "tpu, and --merge the results"
        )
    found = [
        BenchTarget(device, backend)
        for backend in dict.fromkeys(backends or ("jax",))
        for device in dict.fromkeys(devices or (None,))
    ]
    return found


def measure(
    where: Sequence[BenchTarget],
    words: Sequence[str],
    budget: float | None,
    note: Callable[[str], None],
    start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
) -> Bench:
    """Measures in one process after another; a process that fails does not end the others.

    ``words`` are those of the command line, without what names places or the budget. ``budget``:
    seconds for all processes together. ``note`` gets a line when a process begins, and when one has
    failed. Raises PacelineError where no process measured anything.
    """
    results: list[Bench] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        for i, place in enumerate(where):
            path = Path(folder) / f"{i}.json"
            share = "none" if budget is None else f"{budget / len(where):.3f}"
            note(f"measuring on {place}")
            process = start(
                [
                    sys.executable,
                    "-c",
                    _MAIN,
                    "bench",
                    *words,
                    "--measure-for",
                    share,
                    "-o",
                    str(path),
                ],
                env=place.environment(os.environ),
                stdout=subprocess.DEVNULL,  # its own table; this process prints one for all places
            )
            try:
                code = process.wait()
            except KeyboardInterrupt:
                interrupted = True  # Ctrl-C reaches that process too: it writes its measurements
                code = _ended(process)
            if path.is_file():
                results.append(load(path))
            else:
                note(f"nothing could be measured on {place} (exit code {code}); see above")
            if interrupted:
                break
    runs = [run for result in results for run in result.runs]
    if not runs:
        if interrupted:
            raise KeyboardInterrupt
        raise PacelineError("nothing could be measured; see the errors above")
    return Bench(runs, target_value=results[0].target_value, plan=results[0].plan)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
