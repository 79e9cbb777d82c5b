"""`lfpo watch`: serves a run's page, which polls for new data. It only reads the run's folder."""

import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.watch import WatchConfig
from lfpo.report.data import run_data, run_info
from lfpo.report.html import embedded, page
from lfpo.runs.directory import Run

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
AGAIN = {"Refresh": "2", "Retry-After": "2"}  # seconds


def run_watch(config: WatchConfig) -> None:
    with Server(config) as server:
        print(f"watching {config.run} at {server.address}  (stop with Ctrl-C)")
        server.serve_forever()


class Server(ThreadingHTTPServer):
    """Bound to its port; serve_forever() starts it. Raises UserError for a wrong folder, host or port.

    address: the URL to open.
    """

    daemon_threads = True

    def __init__(self, config: WatchConfig) -> None:
        self.run = Run(user_path(config.run))
        if not (self.run.dir / "config.yaml").exists():
            raise UserError(
                f"{self.run.dir}: holds no run (no config.yaml); give the output_dir of an lfpo train that has started"
            )
        run_info(self.run)
        try:
            super().__init__((config.host, config.port), Handler)
        except OSError as error:
            raise UserError(
                f"lfpo watch: could not listen at {config.host} port {config.port} ({error.strerror or error}); "
                "give another --host or --port (0: a free one)"
            ) from error
        self.address = f"http://{config.host}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: object) -> None:
        """Print nothing for a browser that has closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """GET / is the page, GET /data.json its data (304 while it has not changed)."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "lfpo"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path not in ("/", "/data.json"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "no such page\n")
            return
        tag = version(self.server.run.dir)
        if url.path == "/data.json" and self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, "application/json", "", ETag=tag)
            return
        try:
            data = {**run_data(self.server.run), "live": True, "version": tag}
        except UserError as error:  # no metrics yet, or a file is being replaced: the page asks again
            self.close_connection = True
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n", **AGAIN)
            return
        made = ("text/html; charset=utf-8", page(data)) if url.path == "/" else ("application/json", embedded(data))
        self._answer(HTTPStatus.OK, *made, ETag=tag)

    do_HEAD = do_GET  # _answer leaves out the body

    def _answer(self, status: HTTPStatus, kind: str, text: str, **headers: str) -> None:
        """headers: beside HEADERS."""
        body = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def version(folder: Path) -> str:
    """ETag of a run's folder: changes whenever the run has written something that the page shows."""
    files = [folder / name for name in ("metrics.jsonl", "config.yaml", "notes.jsonl", "eval", "rollouts")]
    state = [file.stat() for file in files if file.exists()]
    return f'"{"-".join(f"{stat.st_mtime_ns:x}-{stat.st_size:x}" for stat in state)}"'
