"""The search side: trials, samplers, pruners, storage. It never imports JAX or Keras."""
