"""A process that has imported what scripts need, and runs each of them in a copy of itself.

It imports in the order in which a script would; no thread runs yet when it is copied. Importing
TensorFlow, JAX and Keras takes longer than most scripts. It reads a line of JSON for each script,
``{"folder": ..., "log": ..., "trains": ...}``, and answers with the exit status of that script.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time


def main(imports: list[str], limit: float) -> None:
    """Runs ``script.py`` in each folder that it is told; a script that takes too long is ended."""
    for name in imports:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked["folder"], asked["log"], trains=asked["trains"])
            return
        print(_ended(child, limit), flush=True)


def _become(folder: str, log: str, *, trains: bool) -> None:
    """Runs the script as this process, whose output goes to files."""
    os.chdir(folder)
    os.environ["PACELINE_STRANGERS_LOG"] = log
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    if trains:
        _train()
    sys.argv, sys.path[0] = ["script.py"], folder
    runpy.run_path("script.py", run_name="__main__")


def _train() -> None:
    """Trains a model on the backend of the session, as a notebook may have done before."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((8, 4), "float32"), np.zeros((8, 1), "float32"), verbose=0)


def _ended(child: int, limit: float) -> int:
    """The exit status of a child, and -1 for one that had to be ended."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


if __name__ == "__main__":
    main(sys.argv[2:], float(sys.argv[1]))
