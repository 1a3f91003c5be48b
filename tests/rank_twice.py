"""One of the ranks of a script that starts one run after another."""

import sys
import time
from datetime import timedelta

from voidrl import ranks

for _ in range(3):
    with ranks.process_group() as here:
        sys.stdout.write(f"{ranks.total(here.rank + 1)}\n")
    ranks.group.START_TIMEOUT = timedelta(0)  # later runs may be waited for much longer
    time.sleep(here.rank)
