"""``paceline bench``: measures what training a model costs, and says what follows from it.

``records`` are the figures. ``measure/`` makes them, with JAX and Keras; ``tell/`` says what
follows from them, and needs no device. ``budget`` plans a search for some hours, by a measured
beginning.

A cell is one combination of batch size, plan, slots and devices: a ``CellConfig`` with its
``Measurement``.
"""
