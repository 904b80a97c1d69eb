"""What a study remembers of how it was searched: arguments, data, versions, the command."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import msgspec

from paceline.data import arrays as data_module
from paceline.errors import StudyError
from paceline.study.objectives import Objective
from paceline.study.pruners.pruners import pruner_text
from paceline.study.storage import schema
from paceline.study.storage.rdb import hide_password
from paceline.tuner.arguments.arguments import ARGUMENTS, SearchArguments
from paceline.tuner.arguments.config import TunerConfig

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives


def checkpoint_key(
    config: TunerConfig, arguments: SearchArguments, objective: Objective | Objectives
) -> dict[str, Any]:
    """What searches must share for one to continue with another's checkpoint, as JSON values."""
    backend = keras.backend.backend()
    return {
        **arguments.key,
        "data": list(digests(arguments).values()),
        **{name: of for name, of in _objectives(objective).items() if name != "direction"},
        # A cluster trains what "auto" does, and each continues with what the other has begun.
        "executor": "auto" if config.executor == "ray" else config.executor,
        **({} if backend == "jax" else {"backend": backend}),
        # Left out where it is the default: checkpoints from before it was here are continued.
        **({} if numerics() == "float32" else {"numerics": numerics()}),
        **_decisive(config),
    }


def study_meta(
    config: TunerConfig, arguments: SearchArguments, objective: Objective | Objectives, batch: Any
) -> dict[str, Any]:
    """What a study remembers beside its trials, as JSON values; ``batch`` has shapes."""
    origin = config.origin
    reasons = {"pruner_reason": config.pruner_reason, "sampler_reason": config.sampler_reason}
    return {
        **_objectives(objective),
        **_decisive(config),
        "search": arguments.to_meta(),
        **digests(arguments),
        "numerics": numerics(),
        "batch": None if batch is None else data_module.shapes_to_json(batch),
        "versions": versions(),
        "compiled_with": compiled_with(),
        "run": how_started(None if origin is None else origin.get("file")),
        **({"origin": origin} if origin else {}),
        **{name: why for name, why in reasons.items() if why is not None},
    }


def digests(arguments: SearchArguments) -> dict[str, Any]:
    """Digests of the training and the validation data; None if packs have none."""
    data = {"data": arguments.loaded.data, "validation": arguments.loaded.validation}
    return {name: None if each is None else each.digest() for name, each in data.items()}


def _objectives(objective: Objective | Objectives) -> dict[str, Any]:
    if isinstance(objective, Objective):
        return {"objective": objective.name, "direction": objective.direction}
    more = {"objectives": objective.names, "directions": objective.directions}
    return {**_objectives(objective.first), **more}


def _decisive(config: TunerConfig) -> dict[str, Any]:
    """The arguments of ``Tuner`` that decide the trials of a study, as JSON values."""
    sampler = config.sampler
    return {
        "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
        "seed": config.seed,
        "parallel_trials": config.parallel_trials,
        "plan": config.plan,
        "pruner": None if config.pruner is None else pruner_text(config.pruner),
        "precision": config.precision,
        "mesh": None if config.mesh is None else list(config.mesh),
        # Left out where it is the default: studies from before there was a choice continue.
        **({} if config.share_widths == "auto" else {"share_widths": config.share_widths}),
        **({"constraints": config.constraints.to_json()} if config.constraints else {}),
    }


def code(digest: str | None) -> dict[str, Any] | None:
    """What a study remembers of the code of ``build`` that its first trials were built with."""
    major, minor = sys.version_info[:2]
    return None if digest is None else {"digest": digest, "python": f"{major}.{minor}"}


#: Arguments of a search whose values decide how each of its trials trains.
ERA = [name for name, spec in ARGUMENTS.items() if spec.era]


def eras(before: Mapping[str, Any], arguments: SearchArguments, n_trials: int) -> list[Any]:
    """From which trial on a study was searched with which arguments, as JSON values.

    Trials that are unfinished when arguments change count with the earlier arguments.
    """
    found, now = _eras(before), arguments.to_meta()
    if not found and n_trials:
        found = [[0, before.get("search", {})]]
    # A name that is there with None stands for a function of hp, and is not the name left out.
    same = found and all(
        (name in found[-1][1], found[-1][1].get(name)) == (name in now, now.get(name))
        for name in ERA
    )
    return found if same else [*found, [n_trials, now]]


def search_of(meta: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The arguments that a trial was searched with, as far as the study remembers them."""
    found = [search for first, search in _eras(meta) if first <= number]
    return dict(found[-1] if found else meta.get("search", {}))


def _eras(meta: Mapping[str, Any]) -> list[list[Any]]:
    found = meta.get("eras", [])
    try:
        msgspec.convert(found, list[tuple[int, schema.StoredSearch]])
    except schema.UNREADABLE as error:
        raise StudyError(f"the attribute paceline of the study: eras: {error}") from None
    return [list(each) for each in found]


def versions() -> dict[str, str]:
    """What a history depends on beyond its trial: versions of packages, and the device."""
    backend = keras.backend.backend()
    found = {name: metadata.version(name) for name in ("paceline", "keras")}
    # Only Keras' own backend is asked for devices: another one would take their memory.
    if backend == "jax":
        import jax

        found |= {name: metadata.version(name) for name in ("jax", "jaxlib")}
        return {**found, "device": jax.devices()[0].device_kind}
    found[backend] = str(import_module(backend).__version__)
    return {**found, "device": _device(backend)}


def compiled_with() -> dict[str, str]:
    """Options of the compiler on which the last bits of a history depend; none but under JAX."""
    if keras.backend.backend() != "jax":
        return {}
    from paceline.program.jax_compat import extra_options

    return {"xla_backend_extra_options": extra_options()}


def numerics() -> str:
    """What models compute in at this moment, in a word or two."""
    name, wide = keras.config.dtype_policy().name, keras.config.floatx()
    if keras.backend.backend() == "jax":
        import jax

        wide += ", 64 bits" if jax.config.jax_enable_x64 else ""  # type: ignore[attr-defined]
    return name if (name, wide) == ("float32", "float32") else f"{name} (floatx {wide})"


def _device(backend: str) -> str:
    module = import_module(backend)
    if backend == "torch":
        return module.cuda.get_device_name() if module.cuda.is_available() else "cpu"
    kinds = {device.device_type for device in module.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "cpu").lower()


#: Parts of the names of options whose values are nobody else's business.
_SECRET = frozenset(
    "auth credential credentials key passphrase passwd password pwd secret token".split()
)


def how_started(file: str | None) -> dict[str, Any]:
    """How this process was started, and the version of the code: of ``file``, or of its script."""
    return {
        "command": None if in_notebook() else shlex.join(_shown(sys.orig_argv))[:2000],
        "python": platform.python_version(),
        "git": _git(_script_folder() if file is None else Path(file).parent),
    }


def _shown(words: Sequence[str]) -> list[str]:
    """A command line with stars for passwords in URLs and for the values of secret options."""
    found, hidden = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = bool(_SECRET & {*re.split(r"[^a-z]+", name.lower())}) and " " not in name
        if hidden and not word.startswith("-"):
            found.append("***")
        elif secret and equals:
            found.append(f"{name}=***")
        else:
            found.append(hide_password(word) if "://" in word or equals else word)
        hidden = secret and not equals and name.startswith("-")
    return found


def in_notebook() -> bool:
    """Whether nobody typed the command of this process: it is the kernel of a notebook."""
    return "ipykernel" in sys.modules


def _script_folder() -> Path:
    """The folder of the script that this process runs; for a notebook the working folder."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str) or in_notebook():
        return Path.cwd()
    return Path(file).resolve().parent


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit of a folder's repository, and whether tracked files differ from it; or None."""

    def ask(*words: str) -> str:
        # No program that the repository's settings name is run.
        options = ["-c", "core.fsmonitor=false", "-c", "core.pager=cat"]
        return subprocess.run(
            ["git", *options, *words],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        ).stdout.strip()

    try:
        commit = ask("rev-parse", "--verify", "HEAD")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None  # no repository, no commit yet, or no git
    try:
        dirty = bool(ask("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return {"commit": commit, "dirty": None}
    return {"commit": commit, "dirty": dirty}
