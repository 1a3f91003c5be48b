"""One of the ranks of a script that starts one run after another."""

import sys

from voidrl import ranks

for _ in range(3):
    with ranks.process_group() as here:
        sys.stdout.write(f"{ranks.total(here.rank + 1)}\n")
