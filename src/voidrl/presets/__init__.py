"""Presets as data: protocols, and recipes of methods for them."""
