"""A terminal that a test holds the other end of."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading

from rich.cells import cell_len

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PseudoTerminal:
    """`stream` is a real terminal of so many columns; what was written to it is read back."""

    def __init__(self, columns):
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._bytes = bytearray()
        self.resize(columns)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns):
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def _read(self):
        while True:
            try:
                self._bytes += os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if not self.stream.closed:
            self.stream.close()
        self._reader.join(10)
        os.close(self._master)

    def text(self):
        """All that was written; nothing more can be."""
        self.stream.close()
        self._reader.join(10)
        return self._bytes.decode()

    def lines(self):
        """What was written, line by line, also those that were drawn over, without escapes."""
        return [line for line in re.split(r"[\r\n]+", ESCAPE.sub("", self.text())) if line]


def widest(lines):
    return max(cell_len(line.rstrip()) for line in lines)
