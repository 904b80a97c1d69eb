"""Small helpers, most of them under the names of ``keras_tuner.utils``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.errors import ProjectError
from paceline.program.files import write_atomically

__all__ = ["IS_NOTEBOOK", "create_directory", "load_json", "save_json", "to_list", "try_clear"]

#: Always False: cells of notebooks are not cleared here, because trials run side by side.
IS_NOTEBOOK = False


def say(text: Any = "") -> None:
    """Writes a line to stdout, as KerasTuner does."""
    sys.stdout.write(f"{text}\n")


def try_clear() -> None:
    """Prints an empty line."""
    say()


def save_json(path: str | Path, content: Any) -> None:
    """Writes a JSON file, entirely or not at all."""
    write_atomically(Path(path), json.dumps(content).encode())


def load_json(path: str | Path) -> Any:
    """Reads a JSON file; ProjectError if it is damaged or missing."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProjectError(
            f"{path} cannot be read ({type(error).__name__}: {error}). If you did not mean to "
            "continue an existing project, change `project_name` or pass `overwrite=True`."
        ) from error


def create_directory(path: str | Path, remove_existing: bool = False) -> None:
    """Makes a folder; ``remove_existing``: after removing one of that name with its files."""
    if remove_existing and Path(path).exists():
        shutil.rmtree(path)
    Path(path).mkdir(parents=True, exist_ok=True)


def to_list(values: Any) -> list[Any]:
    """Returns a list: of a list or tuple its items, of anything else that one."""
    return list(values) if isinstance(values, list | tuple) else [values]
