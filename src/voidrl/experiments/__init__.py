"""Experiments as data: TOML files of tasks, methods and seeds; `voidrl experiment` runs them cell by cell.

`format` reads a file → `plan` makes a config for every cell → `state` judges what is there → `estimate` gives
the cost of the rest, or `run` does each cell in its own process (`cell`) → `table` and reports show results.
"""
