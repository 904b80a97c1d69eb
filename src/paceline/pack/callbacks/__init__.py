"""Callbacks in packs: each trial has its own copies, which see the variables of the trial's slot.

``per_trial`` makes a trial's callbacks. ``packable`` says which ones packs support. ``driver``
calls them between epochs. ``slot_model`` is the model that they see. ``state`` stores their
attributes.
"""
