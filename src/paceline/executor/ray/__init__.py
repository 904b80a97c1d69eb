"""Machines of a Ray cluster; the only folder that imports ray, and only when a search uses it."""
