"""How the hyperparameters of the next trial are drawn."""
