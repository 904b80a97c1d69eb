"""Two models that are traced and never trained, so that fewer of the trained ones need tracing.

What is known of a structure's constants holds between the values that were traced
(``program/constant_laws.py``). Trials drawn at random would widen that range again and again;
models at both ends of the space show it at once. Worth it where every hyperparameter is a
continuous number, so that all trials share one structure.
"""

from __future__ import annotations

from typing import Any

from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.search_space import HyperParameters, Parameter
from paceline.study.samplers.values import value_at
from paceline.tuner.arguments import SearchArguments

#: Shares of a range: bounds are often special (a dropout of 0 is another program), and values
#: beyond these are traced.
_ENDS = (0.002, 0.998)
#: Trials below which two more models do not pay.
_ENOUGH = 8


def trace_ends_of_space(
    packs: LocalExecutor,
    builder: ModelBuilder,
    arguments: SearchArguments,
    known: HyperParameters,
    seed: int,
) -> None:
    """Shows the executor the two ends of a space of continuous numbers.

    Args:
        packs: The executor.
        builder: Builds models.
        arguments: Of the search.
        known: A build's hyperparameters: the space so far as it is known.
        seed: For the weights, which do not matter.
    """
    parameters = known.parameters.values()
    packs.demand.uniform = bool(parameters) and all(not p.is_finite for p in parameters)
    if not packs.demand.uniform or (arguments.n_trials or _ENOUGH) < _ENOUGH:
        return
    for share in _ENDS:

        def choose(parameter: Parameter, share: float = share) -> Any:
            if parameter.is_finite:
                return parameter.default
            return parameter.from_storage(value_at(parameter.distribution, share))

        hp = HyperParameters(chooser=choose)
        try:
            packs.pretrace(builder(hp, seed), arguments.setting_for(hp))
        except Exception:  # a build or trace that fails here says nothing: the trials will tell
            return
