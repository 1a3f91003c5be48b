"""Executes the agent's updates and actions. Importing the package does not import torch."""
