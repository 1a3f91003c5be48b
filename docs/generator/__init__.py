"""What docs/generate.py writes: one file for each page that is made from the code."""
