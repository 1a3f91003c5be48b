"""One of the ranks of a script that starts one run after another."""

import sys
import time
from datetime import timedelta

from voidrl import dist

for _ in range(3):
    with dist.process_group() as here:
        sys.stdout.write(f"{dist.total(here.rank + 1)}\n")
    dist.START_TIMEOUT = timedelta(0)  # later runs may be waited for much longer
    time.sleep(here.rank)
