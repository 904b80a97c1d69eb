"""Predict with the model in this folder: python predict.py DATA.npy [-o predictions.npy].

DATA.npy holds the examples, first axis examples. DATA.npz holds one array, or one named x, or one
for each input of the model, under the input's name. A model that was searched on a table takes
DATA.csv with the same columns, as encoding.json says. It needs the packages in requirements.txt,
and not Paceline.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Read the examples, predict, and write the predictions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="examples: a .npy, .npz or .csv file")
    parser.add_argument("-o", "--output", type=Path, default=Path("predictions.npy"))
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    # Keras reads this once, when it is imported.
    os.environ.setdefault("KERAS_BACKEND", manifest["keras_backend"])
    model = load(manifest)
    try:
        x = examples(options.data, names(model))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{options.data}: {error}")
    check(x, model, options.data)
    x = as_floats(x, model)
    predictions = model.predict(x, batch_size=options.batch_size, verbose=0)
    write(options.output, predictions)


def load(manifest: dict[str, Any]) -> Any:
    """Load the model, with the classes that the files in this folder define."""
    import keras

    sys.path.insert(0, str(HERE))
    classes: dict[str, Any] = {}
    for name in manifest["modules"]:
        try:
            found = importlib.import_module(name)
        except ImportError as error:
            sys.exit(f"the model needs the module {name}: {error}; put it next to predict.py")
        classes |= {key: value for key, value in vars(found).items() if isinstance(value, type)}
    return keras.models.load_model(HERE / manifest["model"], custom_objects=classes)


def names(model: Any) -> list[str]:
    """The names of the model's inputs."""
    return [each.name.partition(":")[0] for each in model.inputs]


def examples(path: Path, inputs: list[str]) -> Any:
    """Read the examples from a file."""
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        return encoded(path, json.loads((HERE / "encoding.json").read_text(encoding="utf-8")))
    with np.load(path, allow_pickle=False) as arrays:
        found = dict(arrays)
    if set(inputs) <= set(found):
        return {name: found[name] for name in inputs}
    if "x" in found or len(found) == 1:
        return found["x"] if "x" in found else next(iter(found.values()))
    raise ValueError(f"holds {', '.join(found)}; name an array x, or one for each input: {inputs}")


def encoded(path: Path, encoding: dict[str, Any]) -> Any:
    """Read a table, and make numbers of its columns as before the search: f32[N, D]."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    columns: list[Any] = []
    for name, categories in ((each["name"], each["categories"]) for each in encoding["features"]):
        if not rows or name not in rows[0]:
            raise ValueError(f"holds no column {name!r}" if rows else "holds no rows")
        texts = [row[name] or "" for row in rows]
        if "" in texts:
            raise ValueError(f"column {name!r} has no value in row {texts.index('') + 1}")
        if categories is None:
            try:
                columns.append(np.array(texts, dtype="float32"))
            except ValueError as error:
                raise ValueError(f"column {name!r} must hold numbers: {error}") from None
            continue
        if categories == ["False", "True"]:
            texts = [text.capitalize() for text in texts]
        for other in sorted(set(texts) - set(categories)):
            sys.stderr.write(f"column {name!r}: ignored the new category {other!r}\n")
        columns += [np.array([text == each for text in texts]) for each in categories]
    return np.stack(columns, axis=1).astype("float32")


def check(x: Any, model: Any, path: Path) -> None:
    """End with a message where the examples have another shape than the model's input."""
    arrays = x if isinstance(x, dict) else {names(model)[0]: x}
    for name, each in zip(names(model), model.inputs, strict=True):
        if name not in arrays:
            continue
        found, wanted = tuple(arrays[name].shape[1:]), tuple(each.shape[1:])
        longer = found if len(found) > len(wanted) else wanted
        # Keras adds a last axis of one, or leaves one out.
        rank = abs(len(found) - len(wanted))
        alike = rank == 0 or (rank == 1 and longer[-1] == 1)
        sizes = zip(found, wanted, strict=False)
        if not alike or any(want is not None and have != want for have, want in sizes):
            sys.exit(f"{path}: examples have the shape {found}, but the model takes {wanted}")


def as_floats(x: Any, model: Any) -> Any:
    """Cast integers where the model takes floats: of 64 bits, JAX would keep 32."""
    if not all("float" in str(each.dtype) for each in model.inputs):
        return x
    if isinstance(x, dict):
        return {name: as_floats(array, model) for name, array in x.items()}
    return x.astype("float32") if x.dtype.kind in "iu" else x


def write(path: Path, predictions: Any) -> None:
    """Write the predictions: one array as .npy, several as .npz."""
    if isinstance(predictions, (list, tuple)):
        predictions = {f"output_{number}": each for number, each in enumerate(predictions)}
    if isinstance(predictions, dict):
        path = path.with_suffix(".npz")
        arrays: dict[str, Any] = {name: np.asarray(each) for name, each in predictions.items()}
        np.savez(path, **arrays)
        shapes = {name: np.shape(each) for name, each in predictions.items()}
    else:
        path = path.with_suffix(".npy")
        np.save(path, predictions)
        shapes = np.shape(predictions)
    sys.stdout.write(f"{path}: predictions {shapes}\n")


if __name__ == "__main__":
    main()
