"""How the encoder f is learned: one file each."""
