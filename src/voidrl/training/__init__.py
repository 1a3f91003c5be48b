"""Training: the loop, what happens between its steps, evaluation, and the state of a run."""
