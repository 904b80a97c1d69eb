"""Tests against other tools themselves: ``make test-compat``, in an environment that has them.

Elsewhere they are not collected: there is nothing to compare with.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("talos") is None:
    collect_ignore_glob = ["test_*.py"]
