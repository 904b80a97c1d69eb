"""Installs the wheel of dist/ into a fresh environment for each supported Python, and searches.

`make test-wheel` runs it after `make build`. Each environment gets the newest releases that the
wheel's ranges allow, as a user's would. It lies in a temporary folder and goes afterwards. The
commands run in an empty folder, so that nothing but the wheel is there to be imported.

    python tools/fresh_install.py             # each Python that is found
    python tools/fresh_install.py 3.12        # these; one that is not found is an error
    python tools/fresh_install.py --need-all  # an error where one is not found
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dist_contents import the_file

ROOT = Path(__file__).resolve().parents[1]

#: As `requires-python` and CONTRIBUTING.md have them.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

#: What a user does first; `paceline` is the fresh environment's own.
COMMANDS = (
    ("--version",),
    ("search", "digits.py", "--trials", "4", "--epochs", "2"),
    ("best", "digits"),
)

_VERSIONS = """
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("jax", "keras", "optuna", "numpy")))
"""


def candidates(version: str) -> Iterator[str]:
    """Interpreters of that version that may be there: on the path first, then those of pyenv."""
    yield f"python{version}"
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}")))


def find_python(version: str) -> str | None:
    """The first interpreter of that version that starts; None without one.

    pyenv puts a python3.12 on the path that only says where the real one is.
    """
    for candidate in candidates(version):
        try:
            code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
            command = [candidate, "-c", code]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def try_wheel(python: str, wheel: Path, folder: Path) -> None:
    """Makes an environment in the folder, installs the wheel, and runs ``COMMANDS``.

    Raises:
        subprocess.CalledProcessError: One of the commands failed.
    """
    venv, work = folder / "venv", folder / "work"
    work.mkdir()
    shutil.copy(ROOT / "examples" / "digits.py", work)
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    # Neither the checkout nor the caches of its user are seen.
    unseen = ("PYTHONPATH", "PYTHONHOME", "KERAS_HOME", "KERAS_BACKEND")
    environment = {name: value for name, value in os.environ.items() if name not in unseen}
    environment |= {"PACELINE_CACHE_DIR": str(folder / "cache"), "KERAS_HOME": str(folder)}

    def run(*command: str) -> None:
        subprocess.run(command, cwd=work, env=environment, check=True)

    run(python, "-m", "venv", str(venv))
    run(str(venv / "bin" / "python"), *pip, str(wheel.resolve()))
    run(str(venv / "bin" / "python"), "-c", _VERSIONS)
    for arguments in COMMANDS:
        print(f"$ paceline {' '.join(arguments)}", flush=True)
        run(str(venv / "bin" / "paceline"), *arguments)


def main(words: Sequence[str]) -> int:
    """Tries the wheel on each Python; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="3.12, for instance")
    parser.add_argument("--need-all", action="store_true", help="a Python not found is an error")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel is")
    arguments = parser.parse_args(words)
    wheel = the_file(arguments.dist, "*.whl")
    needed = arguments.versions or (PYTHONS if arguments.need_all else ())
    outcomes = []
    for version in arguments.versions or PYTHONS:
        python = find_python(version)
        if python is None:
            how = "FAILED" if version in needed else "skipped"
            outcomes.append(f"Python {version}: {how}, no python{version} on the path or in pyenv")
            continue
        print(f"\n--- {wheel.name} on Python {version}", flush=True)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as folder:
            try:
                try_wheel(python, wheel, Path(folder))
            except subprocess.CalledProcessError as error:
                how = f"FAILED: {' '.join(map(str, error.cmd[1:]))} ended with {error.returncode}"
            else:
                how = "passed"
        outcomes.append(f"Python {version}: {how}, {time.perf_counter() - began:.0f} s")
    print("\n--- the wheel in fresh environments", *outcomes, sep="\n", flush=True)
    return int(any("FAILED" in outcome for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
