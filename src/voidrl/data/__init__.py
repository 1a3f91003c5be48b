"""Experience as files: a run's replay as a dataset, and datasets as experience."""
