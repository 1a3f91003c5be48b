"""Intrinsic rewards, one file each."""
