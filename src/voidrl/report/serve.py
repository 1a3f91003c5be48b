"""`voidrl report PATH --watch`: the live table of runs, their reports and logs as pages on this machine.

It answers only browsers on this machine: it listens on 127.0.0.1, and a request must name this machine as its
host, which a page of another site that resolves its own name to 127.0.0.1 does not. Runs are asked for by
names that are in the table, never by paths.
"""

from __future__ import annotations

import errno
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from voidrl import __version__
from voidrl.config import require
from voidrl.errors import ConfigError, RunFolderError, VoidrlError
from voidrl.report.live import LiveRun, LiveTable, Watch
from voidrl.report.page import render_template, write_report
from voidrl.runs.evaluations import FILE_NAME as EVALUATION
from voidrl.runs.metrics import FILE_NAME as METRICS
from voidrl.system.units import human_bytes

HOST = "127.0.0.1"
PORT = 8765
OWN_NAMES = (HOST, "localhost", "[::1]")
LOOK_SECONDS = 1.0  # however many pages ask
LOG_BYTES = 256 << 10
SCRIPTS = ("page.js", "watch.js")
NO_PAGE = b"there is no such page: expected /\n"
HTML, JSON, TEXT = "text/html", "application/json", "text/plain"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def serve(paths: Sequence[str | Path], port: int, say: Callable[[str], None]) -> None:
    """Serve until a signal comes; `say` is called with the address."""
    require(0 <= port < 65536, "--port", port, "a number below 65536, or 0 for any that is free")
    watch = Watch(paths)
    watch.look()  # a folder without runs is refused here
    with make_server(watch, port) as server:
        say(f"watching {', '.join(map(str, watch.paths))} at {address_of(server)} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


def make_server(watch: Watch, port: int) -> Server:
    """A server that answers once `serve_forever` is called; port 0 takes any that is free."""
    try:
        return Server(watch, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "needs more rights than you have"
        raise ConfigError(
            f"port {port} of {HOST} {why}: choose another one with --port, or any that is free with --port 0"
        ) from error


def address_of(server: Server) -> str:
    """The URL to open in a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"


class _Report(NamedTuple):
    signature: Any
    made: float
    seconds: float
    page: bytes


class Server(ThreadingHTTPServer):
    """Serves the runs of a watch."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int) -> None:
        self.watch = watch
        self._seen: tuple[float, LiveTable] | None = None
        self._looking, self._building = threading.Lock(), threading.Lock()
        self._reports: dict[str, _Report] = {}
        super().__init__((HOST, port), _Handler)

    def snapshot(self) -> LiveTable:
        """The state of the runs as of a moment ago."""
        with self._looking:
            if self._seen is None or time.monotonic() - self._seen[0] > LOOK_SECONDS:
                self._seen = time.monotonic(), self.watch.look()
            return self._seen[1]

    def find(self, name: str) -> LiveRun:
        """A run by its name in the table."""
        for run in self.snapshot().runs:
            if run.name == name:
                return run
        raise RunFolderError(f"there is no run {name!r} in the table")

    def page(self) -> bytes:
        """The page with the table, which fills itself."""
        snapshot = self.snapshot()
        templates = files("voidrl.report").joinpath("templates")
        css, *scripts = (templates.joinpath(name).read_text("utf-8") for name in ("style.css", *SCRIPTS))
        return render_template(
            "watch.html", title=snapshot.title, css=css, script="\n".join(scripts), version=__version__
        ).encode()

    def report(self, name: str) -> bytes:
        """The report of one run, or of all with an empty name; made again if runs have changed since."""
        runs = [self.find(name)] if name else self.snapshot().runs
        signature = [(run.state, _stat(run.path / METRICS), _stat(run.path / EVALUATION)) for run in runs]
        with self._building:  # one at a time: they take CPU time from training runs
            found = self._reports.get(name)
            now = time.monotonic()
            # Runs that train change all the time, and a long report is not made for every click.
            if found is None or (found.signature != signature and now - found.made > 2 * found.seconds):
                paths = [runs[0].path] if name else self.watch.paths
                with tempfile.TemporaryDirectory() as folder:
                    path = write_report(
                        paths, Path(folder) / "report.html", media=False, say=lambda text: None
                    )
                    page = path.read_bytes()
                found = _Report(signature, time.monotonic(), time.monotonic() - now, page)
                self._reports[name] = found
            return found.page

    def log(self, name: str) -> bytes:
        """The end of a run's log, unless that is a link to a file somewhere else."""
        run = self.find(name)
        path = run.log
        if path is None:
            raise RunFolderError(f"{run.name} has no log yet")
        real = path.resolve()
        if not any(real.is_relative_to(folder) for folder in self.watch.log_folders):
            raise RunFolderError(f"{path} leads to {real}, outside of what is watched, so it is not shown")
        with real.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read()
        if size <= LOG_BYTES:
            return text
        head = f"… the last {human_bytes(LOG_BYTES)} of {human_bytes(size)} in {path}\n"
        return head.encode() + text.partition(b"\n")[2]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "voidrl", ""

    def do_GET(self) -> None:
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser has gone
        except (VoidrlError, OSError) as error:
            with suppress(OSError):
                self._send(HTTPStatus.NOT_FOUND, TEXT, f"{error}\n".encode())

    def _answer(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        try:
            asked = urlsplit(self.path)
        except ValueError:  # such as //[
            self._send(HTTPStatus.NOT_FOUND, TEXT, NO_PAGE)
            return
        from_elsewhere = self.headers.get("Sec-Fetch-Site") == "cross-site" and asked.path != "/"
        if name.lower() not in OWN_NAMES or from_elsewhere:
            allowed = f"this page is for browsers on this machine: open {address_of(self.server)}\n"
            self._send(HTTPStatus.FORBIDDEN, TEXT, allowed.encode())
            return
        run = parse_qs(asked.query).get("run", [""])[0]
        if asked.path == "/":
            self._send(HTTPStatus.OK, HTML, self.server.page())
        elif asked.path == "/status.json":
            self._send(HTTPStatus.OK, JSON, json.dumps(self.server.snapshot().to_json()).encode())
        elif asked.path == "/report":
            self._send(HTTPStatus.OK, HTML, self.server.report(run))
        elif asked.path == "/log":
            self._send(HTTPStatus.OK, TEXT, self.server.log(run))
        else:
            self._send(HTTPStatus.NOT_FOUND, TEXT, NO_PAGE)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing for a request."""


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
