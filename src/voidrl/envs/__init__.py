"""Environments behind one vector interface."""
