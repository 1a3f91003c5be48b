"""Run folders on disk: files, locks, status, and readers of their data."""
