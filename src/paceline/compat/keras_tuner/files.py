"""Reads and writes the JSON files of a project, and prints lines for the user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.errors import ProjectError
from paceline.program.files import write_atomically


def say(text: Any = "") -> None:
    """Writes a line to stdout, as KerasTuner does."""
    sys.stdout.write(f"{text}\n")


def write_json(path: str | Path, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_atomically(Path(path), json.dumps(content).encode())


def read_json(path: str | Path) -> Any:
    """Reads a JSON file.

    Raises:
        ProjectError: The file is damaged or missing.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProjectError(
            f"{path} cannot be read ({type(error).__name__}: {error}). If you did not mean to go "
            "on with an existing project, change `project_name` or pass `overwrite=True`."
        ) from error
