"""`voidrl bench`: how fast it is on this machine, and how near to what the machine allows."""
