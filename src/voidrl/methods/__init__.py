"""What is rewarded: one file each."""
