"""Several variants of a step, in an activation, a dropout layer or the like, as one step."""
