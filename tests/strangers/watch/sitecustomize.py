"""Notes in a file how the trials of a script train; Python imports it by itself where it starts.

One line for each epoch of a pack, with the number of its trials, one for each fit of Keras' own
that a search calls, and one where trials begin to run one at a time. Processes that the script
starts write to the same file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import os
import sys
from typing import Any


def _note(line: str) -> None:
    with open(os.environ["PACELINE_STRANGERS_LOG"], "a", encoding="utf-8") as file:
        file.write(line + "\n")


def _before(owner: Any, name: str, say: Any) -> None:
    """Has a method say something before it runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            _note(say(self))
        return original(self, *args, **kwargs)

    setattr(owner, name, told)


#: Module -> class, method, and what it says.
WATCHED: dict[str, tuple[str, str, Any]] = {
    "paceline.pack.pack": ("Pack", "run_epoch", lambda pack: f"pack {len(pack.live)}"),
    "paceline.executor.fit": ("FitExecutor", "_train", lambda executor: "fit"),
    "paceline.compat.interception.turns": (
        "ConcurrencyPolicy",
        "_one_at_a_time",
        lambda _: "alone",
    ),
    "paceline.compat.interception.packed_fit": ("FitHandler", "_alone", lambda handler: "fit"),
}


class _Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in WATCHED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        loader: Any = None if spec is None else spec.loader
        run = loader.exec_module
        owner, method, say = WATCHED[fullname]

        def watched(module: Any) -> None:
            run(module)
            _before(getattr(module, owner), method, say)

        loader.exec_module = watched
        return spec


if "PACELINE_STRANGERS_LOG" in os.environ:
    sys.meta_path.insert(0, _Watch())
