"""Tests against other tools themselves: ``make test-compat``, in an environment that has them.

Elsewhere they are not collected: there is nothing to compare with.
"""

from __future__ import annotations

import functools
import importlib.util
import types

if importlib.util.find_spec("talos") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import pandas as pd
    import talos.commands.restore

    # Talos' own reading: pandas 2.3 ends the process where a trial's id has digits, an "e" and
    # digits (tests/installed/test_talos.py has such a log); its exact reading does not.
    talos.commands.restore.pd = types.SimpleNamespace(
        **{**vars(pd), "read_csv": functools.partial(pd.read_csv, float_precision="round_trip")}
    )
