"""Output in terminals, logs and notebooks."""
