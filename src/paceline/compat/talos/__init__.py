"""The names of Talos: write ``from paceline.compat import talos`` in place of ``import talos``.

A scan of a function that builds, compiles and fits runs unchanged; its permutations train in packs.
``docs/guides/talos.md`` says what differs.
"""

from __future__ import annotations

from paceline.compat.talos import (
    autom8,
    callbacks,
    errors,
    import_aliases,
    metrics,
    model,
    templates,
    utils,
)
from paceline.compat.talos.analyze import Analyze, Reporting
from paceline.compat.talos.autom8 import AutoModel, AutoParams, AutoPredict, AutoScan
from paceline.compat.talos.deploy import Deploy
from paceline.compat.talos.evaluate import Evaluate
from paceline.compat.talos.predict import Predict
from paceline.compat.talos.restore import Restore
from paceline.compat.talos.scan import Scan
from paceline.compat.talos.space import DistributeParamSpace, ParamSpace

#: The version of Talos whose names these are.
__version__ = "2.0.10"

__all__ = [
    "Analyze",
    "AutoModel",
    "AutoParams",
    "AutoPredict",
    "AutoScan",
    "Deploy",
    "DistributeParamSpace",
    "Evaluate",
    "ParamSpace",
    "Predict",
    "Reporting",
    "Restore",
    "Scan",
    "__version__",
    "autom8",
    "callbacks",
    "errors",
    "metrics",
    "model",
    "templates",
    "utils",
]

# Writes the import paths of Talos that have no file here to ``sys.modules``. It cannot wait for the
# first use, because the use is an import statement.
import_aliases.install()
