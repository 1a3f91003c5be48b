"""Executes the agent's updates and actions. Importing this package alone does not import torch."""
