"""Runs many functions that build, compile **and fit** models, so that their fits train in packs.

    with Engine() as engine:
        for outcome in engine.run(FunctionCall(i, function, seed=i) for i in range(100)):
            outcome.number, outcome.value, outcome.error

Each function runs in a thread of its own, but only one thread runs at a time: the one that holds
the baton. A thread hands the baton over inside ``keras.Model.fit``, which is intercepted while the
engine runs, and at the end of its function. What a process has only once (random state, Keras'
global state, warning filters, standard streams) is saved and restored with each handover. So a
function returns what it would have returned alone, that is, after:

    keras.utils.set_random_seed(seed); keras.utils.clear_session(); function()

Functions that share something that would change that run one at a time (``turns.py``).

An intercepted fit joins a pack of ``executor/local.py``: same order of examples as in Keras' own,
a real ``History``, callbacks called in the function's thread after each epoch with the model's
variables up to date, changes that they make to variables carried into the next epoch, trained
weights and the optimizer's state in the model at the end. What a pack cannot do (data that are no
arrays, callbacks that want batches, ``train_step`` that cannot be traced, ...) goes to Keras' own
``fit``, there and then; ``notes`` is told why.
"""

from paceline.compat.interception.call import CallOutcome, FitRecord, FunctionCall
from paceline.compat.interception.engine import Engine
from paceline.compat.interception.turns import check_concurrent

__all__ = ["CallOutcome", "Engine", "FitRecord", "FunctionCall", "check_concurrent"]
