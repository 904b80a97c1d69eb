"""Tests against the trackers themselves: ``make test-trackers``, in an environment that has them.

Elsewhere they are not collected: there is nothing to read back with.
"""

from __future__ import annotations

import importlib.util

if any(importlib.util.find_spec(name) is None for name in ("mlflow", "wandb", "tensorboard")):
    collect_ignore_glob = ["test_*.py"]
