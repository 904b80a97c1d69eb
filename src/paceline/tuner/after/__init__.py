"""What a study gives once it has trials: results, models, ensembles, bundles, a trial again."""
