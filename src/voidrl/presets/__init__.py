"""Presets as data, and recipes of methods for them."""
