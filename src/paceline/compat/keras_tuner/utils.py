"""Small helpers, under the names of ``keras_tuner.utils``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.files import read_json as load_json
from paceline.compat.keras_tuner.files import say
from paceline.compat.keras_tuner.files import write_json as save_json

__all__ = ["IS_NOTEBOOK", "create_directory", "load_json", "save_json", "to_list", "try_clear"]

#: Always False: cells of notebooks are not cleared here, because trials run side by side.
IS_NOTEBOOK = False


def try_clear() -> None:
    """Prints an empty line."""
    say()


def create_directory(path: str | Path, remove_existing: bool = False) -> None:
    """Makes a folder.

    Args:
        path: The folder.
        remove_existing: Whether a folder of that name is removed first, with all that is in it.
    """
    if remove_existing and Path(path).exists():
        shutil.rmtree(path)
    Path(path).mkdir(parents=True, exist_ok=True)


def to_list(values: Any) -> list[Any]:
    """Returns a list: of a list or tuple its items, of anything else that one."""
    return list(values) if isinstance(values, list | tuple) else [values]
