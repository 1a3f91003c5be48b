"""The agent, its optimizers, and who trains what."""

from voidrl.agent.agent import Agent

__all__ = ["Agent"]
