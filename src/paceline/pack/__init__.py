"""Trials of one program that train together: slots, plans, callbacks, mesh."""
