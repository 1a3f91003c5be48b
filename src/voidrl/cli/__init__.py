"""The `voidrl` command."""
