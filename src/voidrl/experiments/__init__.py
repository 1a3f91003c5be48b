"""Experiments as data: TOML files of tasks, methods and seeds; `voidrl experiment` runs them cell by cell.

The way of the data: `format` reads a file → `plan` makes a config for every cell → `state` tells what is
there → `estimate` says what the rest would take, or `run` has each cell done by a process of its own (`cell`)
→ `table` and the report show what came of it.
"""
