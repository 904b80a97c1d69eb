"""A process of the session's own, whose Keras runs on JAX, and what it is sent and sends back."""
