"""`voidrl bench`: speed on this machine, compared with what its hardware allows."""
