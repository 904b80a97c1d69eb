"""Trains the functions that people wrote for another loop: a plain one, futures, Optuna's.

``map.py`` and ``pool.py`` are for any function, ``optimize.py`` for objectives of Optuna. All
three pass their functions to ``compat/interception``.
"""
