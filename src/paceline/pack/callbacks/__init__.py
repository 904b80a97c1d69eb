"""Callbacks: each trial has its own, and in a pack they find the variables of its slot."""
