"""The import paths of Talos, such as ``from paceline.compat.talos.model.normalizers import ...``.

Talos has a file for nearly every function, and some files moved between its versions. Here a table
maps each of those paths to the modules that hold the names.

``import paceline.compat.talos`` registers these paths as modules in ``sys.modules``, at once: the
import system looks there before it looks for files, and nothing else would tell it of a path that
has no file. All names begin with ``paceline.compat.talos.``, so no module of others is touched.
"""

from __future__ import annotations

import sys
from types import ModuleType

from paceline.compat.talos import (
    analyze,
    autom8,
    callbacks,
    deploy,
    errors,
    evaluate,
    gpu_utils,
    metrics,
    model,
    old_functions,
    predict,
    restore,
    scan,
    space,
    torch_history,
    utils,
)

_HERE = "paceline.compat.talos"
#: Path below ``talos`` -> the modules that hold the names of that path.
_PATHS: dict[str, tuple[ModuleType, ...]] = {
    "scan.Scan": (scan,),
    "scan.scan_addon": (old_functions,),
    "commands": (analyze, deploy, evaluate, predict, restore),
    "commands.analyze": (analyze,),
    "commands.reporting": (analyze,),
    "commands.deploy": (deploy,),
    "commands.evaluate": (evaluate,),
    "commands.predict": (predict,),
    "commands.restore": (restore,),
    "parameters": (space,),
    "parameters.ParamSpace": (space,),
    "parameters.DistributeParamSpace": (space,),
    "model.normalizers": (model,),
    "model.layers": (model,),
    "model.hidden_layers": (model,),
    "model.early_stopper": (model,),
    "model.network_shape": (model,),
    "model.output_layer": (model,),
    "metrics.keras_metrics": (metrics,),
    "utils.metrics": (metrics,),
    "utils.gpu_utils": (gpu_utils,),
    "utils.exceptions": (errors,),
    "utils.best_model": (old_functions,),
    "utils.generator": (utils,),
    "utils.load_model": (old_functions,),
    "utils.sequence_generator": (utils,),
    "utils.recover_best_model": (utils,),
    "utils.power_draw_append": (utils,),
    "utils.rescale_meanzero": (utils,),
    "utils.test_utils": (utils,),
    "utils.torch_history": (torch_history,),
    "utils.validation_split": (utils,),
    "callbacks.experiment_log": (callbacks,),
    "callbacks.power_draw": (callbacks,),
    "callbacks.training_plot": (callbacks,),
    "autom8.automodel": (autom8,),
    "autom8.autoparams": (autom8,),
    "autom8.autopredict": (autom8,),
    "autom8.autoscan": (autom8,),
}


def install() -> None:
    """Registers a module in ``sys.modules`` for each path; a second call does nothing."""
    for path, modules in _PATHS.items():
        name = f"{_HERE}.{path}"
        if name in sys.modules:
            continue
        made = ModuleType(name, f"What ``talos.{path}`` holds.")
        for each in modules:
            names = getattr(each, "__all__", None) or [n for n in vars(each) if n[0] != "_"]
            vars(made).update({n: getattr(each, n) for n in names})
        sys.modules[name] = made
        parent, _, last = path.rpartition(".")
        above = sys.modules.get(f"{_HERE}.{parent}" if parent else _HERE)
        if above is not None and not hasattr(above, last):
            setattr(above, last, made)
