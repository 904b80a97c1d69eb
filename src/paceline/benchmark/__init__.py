"""``paceline bench``: measures what training a model costs, and says what follows from it.

These modules are plain Python and need no device: ``records`` (the figures), ``advice`` and
``convergence`` (sentences about them), ``quota`` (sessions of a search), ``grid`` (what to
measure), ``document`` (the parts of a result), ``text`` and ``html`` (how they look). These modules
measure, with JAX and Keras: ``subject``, ``measure``, ``measure_fit``, ``accuracy``,
``pilot_search`` and ``runner``.

A cell is one combination of batch size, plan, slots and devices: a ``Config`` with its
``Measurement``.
"""
