"""Runs KerasTuner's own tests on KerasTuner itself and on Paceline, and prints a count per file.

The tests are not ours and not in this repository. The last source archive of KerasTuner that holds
them is that of release 1.3.5:

    pip download --no-deps --no-binary :all: "keras-tuner==1.3.5" && tar xf keras-tuner-1.3.5.tar.gz
    export PACELINE_KERAS_TUNER_TESTS=keras-tuner-1.3.5/keras_tuner
    python tools/keras_tuner_suite.py                     # every test file in that folder
    python tools/keras_tuner_suite.py oracle_test trial   # files with one of these in their names

The interpreter needs the packages of the developers' environment, keras-tuner included. Only tests
that pass on the installed KerasTuner count. Without TensorFlow, ``tensorflow`` in the tests stands
for a module that has Keras (on JAX) and little else; tests that need more fail on both, and do not
count. Tests of ``applications`` are left out: those are KerasTuner's own on both sides.

The test files are copied to a temporary folder and run twice, each time in a process of its own:
once on ``keras_tuner``, once with all imports of ``keras_tuner`` leading to
``paceline.compat.keras_tuner``. pytest loads this file as its plugin there, to redirect imports.
PACELINE_KERAS_TUNER_LOGS names a folder that gets what pytest printed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

FOLDER = "PACELINE_KERAS_TUNER_TESTS"
#: Set for the plugin: the package that imports of ``keras_tuner`` lead to.
_LEADS_TO = "PACELINE_KERAS_TUNER_LEADS_TO"
THEIRS, OURS = "keras_tuner.src", "paceline.compat.keras_tuner"
#: Seconds for one side; a test may wait for a port that never answers.
_LIMIT = 3600


# -- the command ---------------------------------------------------------------------------------


def main(wanted: list[str]) -> int:
    """Runs the test files whose names hold one of the wanted words; all if there are none."""
    if FOLDER not in os.environ:
        print(f"{FOLDER} names no folder with KerasTuner's tests. {__doc__}", file=sys.stderr)
        return 2
    found = sorted(Path(os.environ[FOLDER]).rglob("*_test.py"))
    found = [file for file in found if file.parent.name != "applications"]
    files = {f"{file.parent.name}_{file.name}": file for file in found}
    files = {n: f for n, f in files.items() if not wanted or any(word in n for word in wanted)}
    theirs, ours = results(files, THEIRS), results(files, OURS)
    print_table("KerasTuner", list(files), theirs, ours)
    return 0


def print_table(
    library: str,
    files: list[str],
    theirs: dict[tuple[str, str], str],
    ours: dict[tuple[str, str], str],
) -> None:
    """Prints how many tests pass on both sides, for each file; sides are (file, test) -> result."""
    counted = [test for test, result in theirs.items() if result == "PASSED"]
    print(f"| file | pass on {library} | of these on Paceline | not on Paceline |")
    print("|---|---|---|---|")
    for file in [*files, "all"]:
        of_file = [test for test in counted if file in ("all", test[0])]
        left = [test[1] for test in of_file if ours.get(test) != "PASSED"]
        names = "" if file == "all" else ", ".join(left)
        print(f"| {file} | {len(of_file)} | {len(of_file) - len(left)} | {names} |")


def results(files: dict[str, Path], leads_to: str) -> dict[tuple[str, str], str]:
    """(File, test) -> PASSED, FAILED, ERROR or SKIPPED, in a process of its own.

    Args:
        files: Name for the copy, which pytest needs to be unique -> the file.
        leads_to: The package under test.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, file in files.items():
            shutil.copy(file, Path(folder, name))
        here = Path(__file__)
        paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {_LEADS_TO: leads_to, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "pytest", "-v", "-p", here.stem, "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", folder, "--tb", "short"]
        command += ["--continue-on-collection-errors"]
        try:
            done = subprocess.run(
                [*command, *files],
                check=False,
                cwd=folder,
                env={"KERAS_BACKEND": "jax", **os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=_LIMIT,
            )
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode()
    if os.environ.get("PACELINE_KERAS_TUNER_LOGS"):
        side = "paceline" if leads_to == OURS else "keras_tuner"
        Path(os.environ["PACELINE_KERAS_TUNER_LOGS"], f"{side}.log").write_text(output)
    line = r"^(\S+\.py)::(\S+(?: \S+)*?) (PASSED|FAILED|ERROR|SKIPPED)"
    found = re.findall(line, output, re.MULTILINE)
    return {(file, test): result for file, test, result in found}


# -- the plugin of pytest ------------------------------------------------------------------------


class _Lead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``keras_tuner.a.b`` another name of the module ``a.b`` of another package.

    Args:
        package: The other package.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._found: dict[str, types.ModuleType] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by Python's import."""
        top, _, rest = name.partition(".")
        if top != "keras_tuner" or f"{name}.".startswith("keras_tuner.src."):
            return None
        try:
            self._found[name] = importlib.import_module(f"{self._package}.{rest}".rstrip("."))
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        """Called by Python's import."""
        return self._found[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Called by Python's import; the module has run already under its own name."""


def _forget_keras_tuner(leads_to: str) -> None:
    """Has KerasTuner imported again under other modules.

    Its public modules have only some of the names that its modules below ``keras_tuner.src`` had
    when the tests were written. For tests of KerasTuner itself each of those gets the names of
    both; for tests of Paceline only ``keras_tuner.src`` stays, which has the messages.
    """
    top: Any = importlib.import_module("keras_tuner")
    public = [name for name in sys.modules if re.match(r"keras_tuner\.(?!src\b)", name)]
    for name in public:
        module = sys.modules.pop(name)
        inner: Any = importlib.import_module(name.replace("keras_tuner.", "keras_tuner.src.", 1))
        for key, value in vars(module).items():
            if not hasattr(inner, key):
                setattr(inner, key, value)
        if name.count(".") == 1:
            setattr(top, name.partition(".")[2], inner)
    if leads_to == OURS:
        del sys.modules["keras_tuner"]


def _stand_in_for_tensorflow() -> None:
    """Lets ``import tensorflow as tf`` and ``tf.keras`` work without TensorFlow."""
    import logging

    import keras

    module: Any = types.ModuleType("tensorflow")
    module.keras, module.__version__ = keras, "0"
    module.get_logger = logging.getLogger
    module.random = types.SimpleNamespace(set_seed=lambda seed: None)  # Keras calls it
    sys.modules["tensorflow"], sys.modules["tensorflow.keras"] = module, keras
    for name in ("tensorboard", "tensorboard.plugins", "tensorboard.plugins.hparams"):
        sys.modules.setdefault(name, types.ModuleType(name))
    hparams: Any = sys.modules["tensorboard.plugins.hparams"]
    hparams.api = types.ModuleType("api")


def pytest_configure(config: Any) -> None:
    """Redirects imports before any test is read."""
    if importlib.util.find_spec("tensorflow") is None:
        _stand_in_for_tensorflow()
    leads_to = os.environ[_LEADS_TO]
    _forget_keras_tuner(leads_to)
    sys.meta_path.insert(0, _Lead(leads_to))


def pytest_runtest_setup(item: Any) -> None:
    """Seeds each test, as KerasTuner's own tests do."""
    import keras
    import numpy as np

    random.seed(0)
    np.random.seed(0)
    keras.utils.set_random_seed(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
