"""RL algorithms, one file each."""
