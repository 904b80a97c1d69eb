"""A study's best model with all that is needed to use it elsewhere, in one zip file.

Nothing here loads JAX or Keras, or runs what a study holds.
"""

from __future__ import annotations

import hashlib
import json
import platform
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.program.files import file_digest
from paceline.report import formats, tables
from paceline.study.trials.trial import Trial

if TYPE_CHECKING:
    from paceline.study.view import StudyView

MODEL, ENCODING = "model.keras", "encoding.json"
#: Packages whose classes Keras itself finds.
_KERAS = {"keras", "keras_hub", "keras_cv", "keras_nlp", "builtins"}
#: Keras' backend -> the packages that predict.py needs beside Keras and NumPy.
_BACKENDS = {"jax": ("jax", "jaxlib"), "tensorflow": ("tensorflow",), "torch": ("torch",)}
#: A fixed time, so that the same study makes the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(
    path: Path,
    study: StudyView,
    trial: Trial,
    model: Path,
    folder: Path,
) -> dict[str, Any]:
    """Writes the bundle of one complete trial with its saved ``model``; returns its manifest."""
    # Optuna and its plots load here, and not with `paceline --help`.
    from paceline.report.html.page import report_page
    from paceline.report.html.subject import ReportSubject

    modules = custom_modules(model)
    files: dict[str, bytes] = {
        MODEL: model.read_bytes(),
        "hparams.json": _json(trial.hparams),
        "results.csv": tables.to_csv(study.trials, study.objectives).encode(),
        "predict.py": (Path(__file__).with_name("predict_script.py")).read_bytes(),
    }
    subject = ReportSubject.beside(
        folder, study.name, study.meta, study.trials, study.stored_trials
    )
    files["report.html"] = report_page(subject).encode()
    if (encoding := encoding_of(study.meta)) is not None:
        files[ENCODING] = _json(encoding)
    for name, text in _sources(study.meta, modules):
        files[name] = text
    manifest = _manifest(study, trial, modules)
    files["requirements.txt"] = "".join(f"{line}\n" for line in manifest["requirements"]).encode()
    manifest["files"] = {name: f"sha256:{_digest(data)}" for name, data in files.items()}
    files["manifest.json"] = _json(manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    return manifest


def encoding_of(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a table became the numbers that a study's models take; None: they had no table."""
    origin = meta.get("origin")
    found = origin.get("encoding") if isinstance(origin, Mapping) else None
    return found if isinstance(found, dict) else None


def custom_modules(model: Path) -> list[str]:
    """Return the modules, other than Keras' own, whose classes a saved model consists of."""

    def of(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            module = value.get("module")
            registered = value.get("registered_name")
            if isinstance(module, str) and module.partition(".")[0] not in _KERAS:
                yield module
            elif module is None and isinstance(registered, str) and ">" in registered:
                yield registered.partition(">")[0]
            for each in value.values():
                yield from of(each)
        elif isinstance(value, list):
            for each in value:
                yield from of(each)

    try:
        with zipfile.ZipFile(model) as file:
            config = json.loads(file.read("config.json"))
        found = dict.fromkeys(of(config))
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError):
        return []
    return [name for name in found if all(part.isidentifier() for part in name.split("."))]


def backend_of(meta: Mapping[str, Any]) -> str:
    """Return the backend of Keras that a study was searched with."""
    versions = meta.get("versions") or {}
    return next((name for name in ("tensorflow", "torch") if name in versions), "jax")


def load_lines(file: str, meta: Mapping[str, Any]) -> list[str]:
    """Return two lines of Python, ready to be pasted, that load a saved model as ``model``."""
    return [
        f'import os; os.environ["KERAS_BACKEND"] = "{backend_of(meta)}"',
        f"import keras; model = keras.models.load_model({file!r})",
    ]


def _manifest(study: StudyView, trial: Trial, modules: list[str]) -> dict[str, Any]:
    meta, backend = study.meta, backend_of(study.meta)
    versions = dict(meta.get("versions") or {})
    told = meta.get("run")
    run: dict[str, Any] = told if isinstance(told, dict) else {}
    packages = {**_installed(), **{n: v for n, v in versions.items() if n != "device"}}
    wanted = ("keras", *_BACKENDS[backend], "numpy")
    return {
        "format": 1,
        "study": study.name,
        "trial": tables.trial_record(trial, study.objectives),
        "objective": meta.get("objective"),
        "direction": study.trials.direction,
        "seed": meta.get("seed"),
        "search": meta.get("search"),
        "data": meta.get("data"),
        "model": MODEL,
        "modules": modules,
        "keras_backend": backend,
        "versions": versions,
        "python": run.get("python") or platform.python_version(),
        "requirements": [f"{name}=={packages[name]}" for name in wanted if name in packages],
        "packages": packages,
        "git": run.get("git"),
        "command": run.get("command"),
    }


def _installed() -> dict[str, str]:
    """Return distribution -> version of what is installed here, by name."""
    found = {str(each.metadata["Name"]).lower(): each.version for each in metadata.distributions()}
    return dict(sorted(found.items()))


def _sources(meta: Mapping[str, Any], modules: list[str]) -> Iterator[tuple[str, bytes]]:
    """The user's file, where the model has classes from it and it is as it was."""
    origin = meta.get("origin")
    if not isinstance(origin, dict):
        return
    try:
        path = Path(str(origin.get("file")))
        if path.stem in modules and f"sha256:{file_digest(path)}" == origin.get("digest"):
            yield path.name, path.read_bytes()
    except OSError:
        return  # gone; the manifest names the module


def _json(value: Any) -> bytes:
    return (json.dumps(formats.strict(value), indent=2, ensure_ascii=False) + "\n").encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
