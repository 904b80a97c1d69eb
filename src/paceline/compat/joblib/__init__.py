"""A backend of joblib, called "paceline": the fits in the jobs of ``Parallel`` train in packs."""
