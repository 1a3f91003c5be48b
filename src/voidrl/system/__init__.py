"""The machine: devices, threads, files, units and the terminal."""
