"""Memory shared with worker processes, as an unnamed file that disappears with the last process that uses it.

Linux keeps such a file in memory without `/dev/shm`, which containers limit to 64 MB or do not have.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import BinaryIO, cast

from voidrl.errors import EnvironmentFailedError


def shared_file() -> BinaryIO:
    """An empty unnamed file: in memory, or in the temporary folder where the system has no such files."""
    if hasattr(os, "memfd_create"):
        try:
            return os.fdopen(os.memfd_create("voidrl"), "r+b", buffering=0)
        except OSError:  # refused by a sandbox
            pass
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


def allocate(file: BinaryIO, size: int, name: str) -> mmap.mmap:
    """Map `size` bytes of the file, for environment `name`."""
    try:
        # A file without the memory behind it would end the process by SIGBUS in the middle of a write.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS
            file.write(bytes(size))
        return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise EnvironmentFailedError(
            f"environment {name!r} cannot be run in worker processes: {size / 1e6:.1f} MB of shared memory "
            f"cannot be allocated ({error.strerror}); free some memory, or use fewer environments"
        ) from error
