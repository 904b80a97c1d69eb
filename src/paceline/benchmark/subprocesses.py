"""Other devices and other Keras backends: a process for each, since neither can be changed in one.

JAX settles on its devices once, Keras on its backend; and a TPU or a GPU that one process holds is
not free for the next. So the process that starts these touches no device itself.
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

from paceline.benchmark.result import Bench, load
from paceline.errors import MissingExtraError, PacelineError, UsageError

#: As users name a device -> as JAX_PLATFORMS does.
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
BACKENDS = {
    "jax": 'pip install "jax"',
    "tensorflow": 'pip install "paceline[tensorflow]"',
    "torch": "pip install torch",
}
_MAIN = "from paceline.cli.app import main; main()"
#: Seconds that an interrupted process has to write what it measured.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Place:
    """Where one process measures.

    Attributes:
        device: cpu, gpu or tpu; None: as JAX finds it.
        backend: Keras'.
    """

    device: str | None
    backend: str

    def __str__(self) -> str:
        return ", ".join(each for each in (self.device, self.backend) if each)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of its process."""
        found = {**base, "KERAS_BACKEND": self.backend}
        if self.backend != "jax":
            found["JAX_PLATFORMS"] = "cpu"  # the device is the backend's: JAX must leave it alone
            if self.device == "cpu":
                found["CUDA_VISIBLE_DEVICES"] = ""
        elif self.device is not None:
            found["JAX_PLATFORMS"] = PLATFORMS[self.device]
            found["PACELINE_FALLBACK"] = "no"  # another device's figures are not what was asked for
        return found


def places(devices: Sequence[str] | None, backends: Sequence[str] | None) -> list[Place]:
    """All combinations.

    Args:
        devices: None: the one that JAX finds.
        backends: None: JAX.

    Raises:
        UsageError: One that is unknown.
        MissingExtraError: A backend that is not installed.
    """
    for device in devices or ():
        if device not in PLATFORMS:
            raise UsageError(f"--devices: {device!r} is not one of {', '.join(PLATFORMS)}")
    for backend in backends or ():
        if backend not in BACKENDS:
            raise UsageError(f"--keras-backends: {backend!r} is not one of {', '.join(BACKENDS)}")
        if importlib.util.find_spec(backend) is None:
            raise MissingExtraError(
                f"--keras-backends: {backend} is not installed; {BACKENDS[backend]}"
            )
    if devices and "tpu" in devices and any(each != "jax" for each in backends or ()):
        raise UsageError(
            "--keras-backends: a TPU is measured with jax only; measure the others without tpu, "
            "and --merge the results"
        )
    found = [
        Place(device, backend)
        for backend in dict.fromkeys(backends or ("jax",))
        for device in dict.fromkeys(devices or (None,))
    ]
    return found


def measure(
    where: Sequence[Place],
    words: Sequence[str],
    budget: float | None,
    note: Callable[[str], None],
    start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
) -> Bench:
    """Measures in one process after another; one that fails has said why, and the others go on.

    Args:
        where: A process for each.
        words: Of the command line, but for what says where and how much time.
        budget: Seconds for all together; None: no limit.
        note: Told what is begun, and what did not work.
        start: Starts a process.

    Raises:
        PacelineError: None of them worked.
    """
    results: list[Bench] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        for i, place in enumerate(where):
            path = Path(folder) / f"{i}.json"
            share = "none" if budget is None else f"{budget / len(where):.3f}"
            note(f"measuring on {place}")
            process = start(
                [sys.executable, "-c", _MAIN, "bench", *words, "--budget", share, "-o", str(path)],
                env=place.environment(os.environ),
                stdout=subprocess.DEVNULL,  # its table: there will be one of all
            )
            try:
                code = process.wait()
            except KeyboardInterrupt:
                interrupted = True  # it has heard of it too, and writes what it has
                code = _ended(process)
            if path.is_file():
                results.append(load(path))
            else:
                note(f"nothing was measured on {place} (exit code {code}); the reason is above")
            if interrupted:
                break
    runs = [run for result in results for run in result.runs]
    if not runs:
        if interrupted:
            raise KeyboardInterrupt
        raise PacelineError("nothing could be measured anywhere; the reasons are above")
    return Bench(runs, target=results[0].target, plan=results[0].plan)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
