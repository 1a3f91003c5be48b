"""Presets."""
