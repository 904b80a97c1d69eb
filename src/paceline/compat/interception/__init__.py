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

If functions share something that changes what they return, they run one at a time (``turns.py``).

An intercepted fit joins a pack of ``executor/local.py``, and does what Keras' own ``fit`` does:

- It has the same order of examples, and returns a real ``History``.
- After each epoch it calls the callbacks, in the function's thread. They see the model's variables,
  and what they change is carried into the next epoch, or batch (``batch_hooks.py``).
- In the end the model has the trained weights and the optimizer's state.

Some fits cannot train in a pack: their data differ from epoch to epoch, callbacks want validation
batches, ``train_step`` cannot be traced, and so on. They train in Keras' own ``fit``, at once, and
``notes`` hears why.
"""

from paceline.compat.interception.call import CallOutcome, FitRecord, FunctionCall
from paceline.compat.interception.engine import Engine
from paceline.compat.interception.turns import check_concurrent

__all__ = ["CallOutcome", "Engine", "FitRecord", "FunctionCall", "check_concurrent"]
