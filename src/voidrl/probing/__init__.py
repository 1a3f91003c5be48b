"""Measures what representations and rewards see of an environment's true state."""
