"""How reward becomes behaviour: one file each."""
