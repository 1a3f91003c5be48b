"""How reward becomes behavior: one file each."""
