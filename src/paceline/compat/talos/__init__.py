"""The names of Talos: write ``from paceline.compat import talos`` in place of ``import talos``.

A scan of a function that builds, compiles and fits runs unchanged; its permutations train in packs.
``docs/reference/talos.md`` says what differs.

Talos has a file for nearly every function, and some files moved between its versions. So a table
maps each path of Talos, as in ``from paceline.compat.talos.model.normalizers import ...``, to the
modules that hold its names.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

from paceline.compat.talos import (
    analyze,
    autom8,
    callbacks,
    deploy,
    errors,
    evaluate,
    kept_models,
    metrics,
    model,
    scan,
    space,
    templates,
    utils,
)
from paceline.compat.talos.analyze import Analyze, Reporting
from paceline.compat.talos.autom8 import AutoModel, AutoParams, AutoPredict, AutoScan
from paceline.compat.talos.deploy import Deploy, Restore
from paceline.compat.talos.evaluate import Evaluate, Predict
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

#: A holder of names -> the paths of Talos that have them; those above a path stand before it.
_PATHS: list[tuple[ModuleType | SimpleNamespace, str]] = [
    (analyze, "commands commands.analyze commands.reporting"),
    (deploy, "commands commands.deploy commands.restore"),
    (evaluate, "commands commands.evaluate commands.predict"),
    (scan, "scan.Scan scan.scan_addon utils.best_model"),
    (kept_models, "utils.load_model"),
    (space, "parameters parameters.ParamSpace parameters.DistributeParamSpace"),
    (model, "model.normalizers model.layers model.hidden_layers model.early_stopper"),
    (model, "model.network_shape model.output_layer"),
    (metrics, "metrics.keras_metrics utils.metrics"),
    (utils.gpu_utils, "utils.gpu_utils"),
    (errors, "utils.exceptions"),
    (utils, "utils.generator utils.sequence_generator utils.recover_best_model"),
    (utils, "utils.power_draw_append utils.rescale_meanzero utils.test_utils utils.live"),
    (utils, "utils.torch_history utils.validation_split"),
    (templates.datasets, "datasets examples examples.datasets"),
    (templates.models, "examples.models"),
    (templates.params, "examples.params"),
    (templates.pipelines, "examples.pipelines"),
    (callbacks, "callbacks.experiment_log callbacks.power_draw callbacks.training_plot"),
    (autom8, "autom8.automodel autom8.autoparams autom8.autopredict autom8.autoscan"),
]


def _register_paths() -> None:
    """Registers a module in ``sys.modules`` for each path, where the import system looks first."""
    for holder, paths in _PATHS:
        names = getattr(holder, "__all__", None) or [n for n in vars(holder) if n[0] != "_"]
        for path in paths.split():
            name = f"{__name__}.{path}"
            made = sys.modules.setdefault(name, ModuleType(name, f"What ``talos.{path}`` holds."))
            vars(made).update({n: getattr(holder, n) for n in names})
            parent, _, last = name.rpartition(".")
            if not hasattr(sys.modules[parent], last):
                setattr(sys.modules[parent], last, made)


# It cannot wait for the first use, because the use is an import statement.
_register_paths()
