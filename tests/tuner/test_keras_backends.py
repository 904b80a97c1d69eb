"""Keras' backend: one that is not installed is told before anything else, with the cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: What is installed here beside JAX is hidden, so that the test is one thing everywhere.
HIDDEN = "import sys\nsys.modules.update(dict.fromkeys(('tensorflow', 'torch')))\n"
CURE = (
    'KERAS_BACKEND: Keras needs {0}, which is not installed. Run pip install "paceline[{0}]", '
    "or set KERAS_BACKEND=jax."
)


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDDEN + code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backend_that_is_not_installed_from_the_command_line(child_environment, fresh_folder):
    Path("model.py").write_text(
        "import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\nimport keras\n"
    )
    done = run(
        "from paceline.cli.app import main; main(['search', 'model.py', '--trials', '1'])",
        child_environment,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == f"paceline: error: {CURE.format('tensorflow')}"
    there = {path.name for path in Path.cwd().iterdir()}
    assert there - {"__pycache__"} == {"model.py"}  # no study was begun


def test_a_backend_that_is_not_installed_from_python(child_environment):
    done = run("import paceline; paceline.Tuner", {**child_environment, "KERAS_BACKEND": "torch"})
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"paceline.errors.MissingExtraError: {CURE.format('torch')}"
