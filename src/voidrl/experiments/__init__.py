"""Experiments as data: TOML files of tasks, methods and seeds; `voidrl experiment` runs them cell by cell.

`format` reads a file, and `request` the command line. `planner` makes the cells, with the configs that
`configs` completes; `state` judges what is in their folders. `dry_run` prints the cost of the rest, or `run`
starts each cell in its own process (`cell`) through an executor. `table` and reports show the results.
"""
