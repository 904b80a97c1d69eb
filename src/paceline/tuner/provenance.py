"""What a study remembers of how it was searched, and whether another search is comparable."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import msgspec

from paceline.data import arrays as data_module
from paceline.errors import StudyError, UsageError
from paceline.executor.base import LEAST_TRIALS
from paceline.program.trace import check_precision
from paceline.report.summary import STOPPING_RULES
from paceline.study.metadata import check_name
from paceline.study.objectives import Objective
from paceline.study.pruners.pruners import pruner_text
from paceline.study.samplers.samplers import SearchStrategy
from paceline.study.storage import schema
from paceline.study.storage.rdb import hide_password
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.config import TunerConfig

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives


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


def precision_of(config: TunerConfig, meta: Mapping[str, Any]) -> str | None:
    """The precision of a study's models: that of the Tuner, else the one it was searched with."""
    return config.precision or check_precision(meta.get("precision"))


def _device(backend: str) -> str:
    module = import_module(backend)
    if backend == "torch":
        return module.cuda.get_device_name() if module.cuda.is_available() else "cpu"
    kinds = {device.device_type for device in module.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "cpu").lower()


def decisive(config: TunerConfig) -> dict[str, Any]:
    """The arguments that decide the trials of a study, as JSON values."""
    sampler = config.sampler
    return {
        "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
        "seed": config.seed,
        "slots": config.slots,
        "plan": config.plan,
        "pruner": None if config.pruner is None else pruner_text(config.pruner),
        "precision": config.precision,
        "mesh": None if config.mesh is None else list(config.mesh),
        # Left out where it is the default: studies from before there was a choice go on.
        **({} if config.widths == "auto" else {"widths": config.widths}),
        **({"constraints": config.constraints.to_json()} if config.constraints else {}),
    }


def key(
    settings: Mapping[str, Any],
    arguments: SearchArguments,
    objective: Objective | Objectives,
    executor: str,
) -> dict[str, Any]:
    """What two searches must share for one to go on with the other's checkpoint, as JSON values.

    ``settings`` are of ``decisive``: sampler, seed, slots, plan, pruner, precision, mesh.
    ``n_trials``, ``trial_timeout`` and the rules that end a search are left out: they may change.
    """
    free = ("n_trials", "trial_timeout", *STOPPING_RULES)
    search = {name: value for name, value in arguments.to_meta().items() if name not in free}
    data = (arguments.data, arguments.validation)
    backend = keras.backend.backend()
    return {
        "batch_size": None,  # as checkpoints have it that no batch size was given
        **search,
        "validation_batch_size": None
        if callable(arguments.validation_batch_size)
        else arguments.validation_batch_size,
        "data": [None if each is None else each.digest() for each in data],
        **{name: of for name, of in _objectives(objective).items() if name != "direction"},
        # A cluster trains what "auto" does, and each goes on with what the other has begun.
        "executor": "auto" if executor == "ray" else executor,
        **({} if backend == "jax" else {"backend": backend}),
        # Left out where it is the default: checkpoints from before it was here are gone on from.
        **({} if numerics() == "float32" else {"numerics": numerics()}),
        **settings,
    }


def meta(
    settings: Mapping[str, Any],
    arguments: SearchArguments,
    objective: Objective | Objectives,
    batch: Any,
    origin: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a study remembers beside its trials, as JSON values; arguments are as for ``key``.

    ``batch`` has shapes; ``origin`` is what ``paceline resume`` has to know, None from Python.
    """
    return {
        **_objectives(objective),
        **settings,
        "search": arguments.to_meta(),
        **{name: value for name, value in of_now(arguments).items() if name != "callbacks"},
        "batch": None if batch is None else data_module.shapes_to_json(batch),
        "versions": versions(),
        "compiled_with": compiled_with(),
        "run": _run(None if origin is None else origin.get("file")),
        **({"origin": dict(origin)} if origin else {}),
    }


def of_now(arguments: SearchArguments) -> dict[str, Any]:
    """What ``reproduce.changes`` compares with a study's metadata."""
    data = {"data": arguments.data, "validation": arguments.validation}
    return {
        **{name: None if each is None else each.digest() for name, each in data.items()},
        "numerics": numerics(),
        "versions": {**versions(), **compiled_with()},
        "callbacks": arguments.to_meta().get("callbacks"),
    }


def _objectives(objective: Objective | Objectives) -> dict[str, Any]:
    if isinstance(objective, Objective):
        return {"objective": objective.name, "direction": objective.direction}
    more = {"objectives": objective.names, "directions": objective.directions}
    return {**_objectives(objective.first), **more}


def _run(file: str | None) -> dict[str, Any]:
    """How this process was started, and the version of the code: of ``file``, or of its script."""
    return {
        "command": None if _interactive() else shlex.join(_shown(sys.orig_argv))[:2000],
        "python": platform.python_version(),
        "git": _git(_script_folder() if file is None else Path(file).parent),
    }


#: Parts of the names of options whose values are nobody else's business.
_SECRET = frozenset(
    "auth credential credentials key passphrase passwd password pwd secret token".split()
)


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


def _interactive() -> bool:
    """Whether nobody typed the command of this process: it is the kernel of a notebook."""
    return "ipykernel" in sys.modules


def _script_folder() -> Path:
    """The folder of the script that this process runs; for a notebook the working folder."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str) or _interactive():
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


#: What a study is called where nothing better is known.
UNNAMED = "study"


def default_study() -> tuple[str, str | None]:
    """The name of a study that the user gives no name: that of the script or the notebook.

    The second part is what to tell the user of the name.
    """
    name = _program_name()
    if name is not None:
        return name, None
    return UNNAMED, (
        f"the study is called {UNNAMED!r}, as the name of this program is not known here; "
        "study='NAME' gives it another name, so that programs do not mix their trials"
    )


def _program_name() -> str | None:
    """The name of the script or notebook that this process runs; None where it has no such name."""
    main = sys.modules.get("__main__")
    if _interactive():
        # VS Code and Jupyter say what notebook a kernel runs; others do not.
        known = [vars(main).get(name) for name in ("__vsc_ipynb_file__", "__session__")]
        known.append(os.environ.get("JPY_SESSION_NAME"))
        files = [Path(each) for each in known if isinstance(each, str)]
        file = next((each for each in files if each.suffix == ".ipynb"), None)
    else:
        script = getattr(main, "__file__", None)
        file = Path(script) if isinstance(script, str) else None
    if file is None:
        return None
    name = file.parent.name if file.name == "__main__.py" else file.stem
    try:
        check_name(name)
    except StudyError:
        return None
    return name


def code(digest: str | None) -> dict[str, Any] | None:
    """What a study remembers of the code of ``build`` that its first trials were built with."""
    major, minor = sys.version_info[:2]
    return None if digest is None else {"digest": digest, "python": f"{major}.{minor}"}


def compare(
    study: str,
    before: Mapping[str, Any],
    arguments: SearchArguments,
    build: Mapping[str, Any] | None,
    constraints: Mapping[str, Any],
    note: Callable[[str], None],
) -> None:
    """Notes why values of a search do not compare with earlier values of its study."""
    then = before.get("build")
    if build and isinstance(then, dict) and then.get("python") == build["python"]:
        if then != build:
            note(
                f"the code of build(hp) has changed since trial 0 of study {study!r}: values of "
                "trials before and after do not compare. fresh=True (--fresh) begins the study "
                "anew, another study name keeps both"
            )
    if others := unlike(before, arguments):
        note(
            f"study {study!r} was searched with {', '.join(others)}: its earlier values do not "
            "compare with the new ones; another study name begins afresh"
        )
    was = {**before.get("versions", {}), **before.get("compiled_with", {})}
    others = [
        f"{name} is {value} and was {was[name]}"
        for name, value in {**versions(), **compiled_with()}.items()
        if was.get(name, value) != value
    ]
    if others:
        note(
            f"since study {study!r} was searched last, {', '.join(others)}: trials go on, and "
            "their numbers may differ from what they would have been in the last digits"
        )
    if before.get("constraints", {}) != constraints:
        note(
            f"trials must satisfy {_constraints(constraints)} from now on; those of study "
            f"{study!r} so far had to satisfy {_constraints(before.get('constraints', {}))}: what "
            "was rejected stays so, and is not tried again"
        )
    now, then = arguments.to_meta(), before.get("search", {})
    epochs = now["epochs"]
    if then.get("epochs") != epochs and epochs is not None:
        note(
            f"trials have {epochs} epochs from now on; those of study {study!r} so far had "
            f"{then.get('epochs') or 'epochs by hp'}"
        )
    for name in ("repeats", "folds"):
        if then.get(name) != now.get(name):
            note(
                f"trials have {now.get(name, 'no')} {name} from now on; those of study "
                f"{study!r} so far had {then.get(name, 'no')} {name}: their values do not "
                "quite compare"
            )


#: Arguments of a search that decide what a trial is trained on, and when it is validated.
_TRAINS = ("batch_size", "shuffle", "steps_per_epoch", "initial_epoch", "validation_freq")


def unlike(before: Mapping[str, Any], arguments: SearchArguments) -> list[str]:
    """What decides the values of a trial, and is not as a study was searched last.

    What an earlier version has not kept in the study's metadata is not compared.
    """
    found = []
    data = {"other data": arguments.data, "other validation data": arguments.validation}
    for (name, now), then in zip(data.items(), ("data", "validation"), strict=True):
        if now is not None and before.get(then) not in (None, now.digest()):
            found.append(name)
    was, now = before.get("search", {}), arguments.to_meta()
    for name in _TRAINS:
        values = was.get(name), now.get(name)
        # None stands for a function of hp, and for arguments that earlier versions left out.
        if None not in values and values[0] != values[1]:
            found.append(f"{name} {values[0]} instead of {values[1]}")
    if before.get("numerics") not in (None, numerics()):
        found.append(f"other numbers than {numerics()}")
    return found


def check_alike(before: Mapping[str, Any], arguments: SearchArguments) -> None:
    """Checks that trials of a study may be trained on: that one training would come of it."""
    if others := unlike(before, arguments):
        raise UsageError(
            f"continue_best: trials were searched with {', '.join(others)}, so half of a history "
            "would not compare with the other half; search as before, or without continue_best."
        )


def family_trials(
    before: Mapping[str, Any] | None, arguments: SearchArguments, strategy: SearchStrategy
) -> int:
    """As ``SearchContext`` has it; ``before`` is None for a study without trials."""
    if before is not None:
        return int(before.get("family_trials", LEAST_TRIALS))
    if arguments.timeout is not None:
        return 0
    return strategy.n_to_come(arguments.n_trials) or LEAST_TRIALS


def eras(before: Mapping[str, Any], arguments: SearchArguments, n_trials: int) -> list[Any]:
    """From which trial on a study was searched with which arguments, as JSON values.

    ``before`` is the study's metadata before this search; ``n_trials`` is how many trials there
    are. Those under way when arguments change count with the earlier arguments.
    """
    found = _eras(before)
    if not found and n_trials:
        found = [[0, before.get("search", {})]]
    names, now = (*_TRAINS, "repeats", "folds"), arguments.to_meta()
    # A name that is there with None stands for a function of hp, and is not the name left out.
    same = found and all(
        (name in found[-1][1], found[-1][1].get(name)) == (name in now, now.get(name))
        for name in names
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


def _constraints(stored: Mapping[str, Any]) -> str:
    """Constraints as ``Constraints.to_json`` has them, in words."""
    texts = [
        name if bounds is None else " and ".join(f"{name} {op} {limit:,}" for op, limit in bounds)
        for name, bounds in stored.items()
    ]
    return ", ".join(texts) or "no constraints"
