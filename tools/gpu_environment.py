"""The environment of `make bench-gpu`, on a machine that may have no network.

    python tools/gpu_environment.py make .venv-gpu
    python tools/gpu_environment.py download            # into wheels/, for this Python
    python tools/gpu_environment.py download --python 3.12 --accelerator-is-there

``make`` installs requirements/gpu.lock. Where the interpreter has a JAX that sees a GPU or a TPU,
as on Kaggle and Colab, that JAX and what it stands on stay, and the environment gets the rest.
Where a folder ``wheels`` is there, packages come from it and from nowhere else.

``download`` fills that folder on a machine with a network, so that it can be carried along.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "gpu.lock"
WHEELS = ROOT / "wheels"
#: What belongs to a JAX that is there, by the beginnings of names.
STACK = ("jax", "nvidia-", "libtpu", "numpy", "scipy", "ml-dtypes", "opt-einsum")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
_OURS = "{}.{}".format(*sys.version_info)
_MARKER = re.compile(r" ; python_full_version (<|>=) '([0-9.]+)'")
_LOOK = "import sys, jax; sys.exit(jax.default_backend() == 'cpu')"


def has_accelerator(python: str) -> bool:
    """Whether the JAX of an interpreter sees a GPU or a TPU."""
    done = subprocess.run([python, "-c", _LOOK], capture_output=True, check=False)
    return done.returncode == 0


def requirements(lock: str, python: str, there: bool) -> str:
    """What of a lock is to be installed.

    Args:
        lock: As pip reads it; what belongs to a requirement is indented.
        python: The version of the Python that it is for, such as 3.12. pip decides by its own.
        there: Whether JAX, and what it stands on, is there and left out.
    """

    def is_for(entry: str) -> bool:
        found = _MARKER.search(entry)
        if found is None:
            return True
        return (_numbers(python) < _numbers(found[2])) == (found[1] == "<")

    entries = [entry for entry in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if is_for(entry)]
    kept = [entry for entry in entries if not (there and entry.startswith(STACK))]
    return "".join(_MARKER.sub("", entry, count=1) for entry in kept)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def make(environment: Path, wheels: Path) -> None:
    """Makes the environment.

    Args:
        environment: Its folder, which is made anew.
        wheels: Packages come from this folder, if it is there.

    Raises:
        subprocess.CalledProcessError: It could not be made.
    """
    there = has_accelerator(sys.executable)
    how = ["--system-site-packages"] if there else []
    _run([sys.executable, "-m", "venv", "--clear", *how, str(environment)])
    source = ["--no-index", "--find-links", str(wheels)] if wheels.is_dir() else []
    python = str(environment / "bin" / "python")
    command = [python, *_PIP, "install", "--no-deps", "--ignore-installed", *source]
    _with_lock(command, _OURS, there)


def download(wheels: Path, python: str, there: bool) -> None:
    """Fills the folder of wheels.

    Args:
        wheels: The folder.
        python: The version of the other machine's Python, such as 3.12.
        there: Whether the other machine has a JAX that sees its GPU or TPU.

    Raises:
        subprocess.CalledProcessError: A package is not to be had.
    """
    chosen = [] if python == _OURS else ["--python-version", python]
    command = [sys.executable, *_PIP, "download", "--no-deps", "--only-binary=:all:"]
    _with_lock([*command, *chosen, "--dest", str(wheels)], python, there)


def _with_lock(command: Sequence[str], python: str, there: bool) -> None:
    chosen = requirements(LOCK.read_text(encoding="utf-8"), python, there)
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as folder:
        file = Path(folder) / "gpu.lock"
        file.write_text(chosen, encoding="utf-8")
        _run([*command, "--require-hashes", "-r", str(file)])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main(words: Sequence[str]) -> int:
    """Makes the environment, or downloads for it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="default: wheels")
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("make", help="make it").add_argument("environment", type=Path)
    other = what.add_parser("download", help="fill the folder of wheels")
    other.add_argument("--python", default=_OURS, help="the other machine's; default: this one's")
    other.add_argument("--accelerator-is-there", action="store_true", help="in its JAX")
    arguments = parser.parse_args(words)
    try:
        if arguments.what == "make":
            make(arguments.environment, arguments.wheels)
        else:
            download(arguments.wheels, arguments.python, arguments.accelerator_is_there)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
