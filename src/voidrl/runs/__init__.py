"""Run folders on disk: files, locks, status, and the readers of what runs have written."""
