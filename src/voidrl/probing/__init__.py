"""Measures of what a representation and an intrinsic reward see of the true state."""
