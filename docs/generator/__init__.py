"""The pages that docs/generate.py writes: one module per page."""
