"""What a model's training costs on the devices there are, measured; and what follows from it.

Records, advice and prediction are plain Python and need no device (``records``, ``advice``,
``prediction``, ``quota``); measuring needs JAX and Keras (``subject``, ``measuring``, ``running``).
"""
