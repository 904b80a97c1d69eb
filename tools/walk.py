"""How much of the package one small search walks through.

Counts the files of ``src/paceline``, and its top entries (modules and folders directly below it),
of which at least one function is called during ``Tuner.search``: four trials on the embedded
digits, random search, no pruner, fresh caches. What runs while a module is imported is not
counted. ``tools/walks/222cc34.json`` holds the figure from before the package had rooms.

    python tools/walk.py            # prints the figure
    python tools/walk.py -o FILE    # and writes it, with the names
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Walk:
    """Files of one folder of which a function has been called, in any thread.

    Attributes:
        files: Paths relative to the folder, in the order of their first call.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, None] = {}
        self._prefix = f"{folder}{os.sep}"
        self._seen: set[CodeType] = set()

    @property
    def entries(self) -> list[str]:
        """Top entries of the folder, sorted: a folder's name, or a module's."""
        return sorted({Path(file).parts[0] for file in self.files})

    def __enter__(self) -> Walk:
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _enter(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code in self._seen:
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix):
            self._seen.add(code)
            return
        # A class body is no function; what a module body calls belongs to the import.
        if not code.co_flags & inspect.CO_OPTIMIZED or self._imported(frame):
            return
        if code.co_name == "find_spec":  # every import asks it whether it is joblib's
            return
        self._seen.add(code)
        self.files[code.co_filename.removeprefix(self._prefix)] = None

    def _imported(self, frame: FrameType) -> bool:
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self._prefix):
                return True
            above = above.f_back
        return False


def build(hp: Any) -> Any:
    """A small dense model for the digits: x f32[B, 64], ten classes."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def walk(folder: Path) -> Walk:
    """Searches in ``folder``, an empty one, and returns what the search walked through."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["PACELINE_CACHE_DIR"] = str(folder / "cache")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache" / "jax")
    os.chdir(folder)
    from sklearn.datasets import load_digits

    import paceline
    from paceline.tuner.search.recording import TimelineRecorder

    # A search that takes longer than ten seconds also writes how far it is. Without that, the walk
    # is the same on a slow machine.
    TimelineRecorder.EVERY = math.inf
    digits = load_digits()
    x, y = (digits.data / 16.0).astype("float32"), digits.target
    tuner = paceline.Tuner(
        build, objective="val_accuracy", study="walk", sampler="random", on_note=lambda text: None
    )
    found = Walk(Path(paceline.__file__).resolve().parent)
    with found:
        tuner.search(
            x[:1024],
            y[:1024],
            validation_data=(x[1024:1280], y[1024:1280]),
            epochs=2,
            batch_size=64,
            n_trials=4,
        )
    states = tuner.results()["state"].tolist()
    if states != ["complete"] * 4:
        raise SystemExit(f"the search that was to be walked ended with trials {states}")
    return found


def main() -> None:
    """Prints the figure, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="a JSON file for figure and names")
    arguments = parser.parse_args()
    output = arguments.output.resolve() if arguments.output else None
    with tempfile.TemporaryDirectory(prefix="paceline-walk-") as folder:
        found = walk(Path(folder))
        os.chdir(Path(folder).parent)
    figure = {
        "files": len(found.files),
        "entries": len(found.entries),
        "names": {"entries": found.entries, "files": sorted(found.files)},
    }
    if output is not None:
        output.write_text(json.dumps(figure, indent=1) + "\n", encoding="utf-8")
    print(f"{figure['files']} files, {figure['entries']} top entries")


if __name__ == "__main__":
    main()
