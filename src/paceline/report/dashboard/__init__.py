"""The dashboard: optuna-dashboard, with a page beside it for what that lacks."""
