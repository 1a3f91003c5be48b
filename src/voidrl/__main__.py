"""`python -m voidrl` is the command `voidrl`."""

import sys

from voidrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
