"""`lfpo watch`: serves the page of a run or of a folder of runs, which polls for new data, or prints it. It only reads
the folder."""

import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lfpo.base.terminal import Terminal
from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.watch import WatchConfig
from lfpo.report.command import print_text
from lfpo.report.data import run_info
from lfpo.report.html import data_of_folder, embedded, page
from lfpo.report.overview import runs_in
from lfpo.runs.directory import Run

HEADERS = {"Cache-Control": "no-store"}
SECONDS = 2.0  # between two looks at a run that is printed
AGAIN = {"Refresh": "2"}  # seconds


def run_watch(config: WatchConfig) -> None:
    if config.text:
        print_until_stopped(config)
        return
    with Server(config) as server:
        print(f"watching {config.run} at {server.address}  (stop with Ctrl-C)")
        server.serve_forever()


def print_until_stopped(config: WatchConfig) -> None:
    """Print a run or a folder of runs, again whenever it has changed; ends when a run has ended, or with Ctrl-C."""
    run, shown = watched(config), ""
    while True:
        if (now := version(run.dir)) != shown:
            shown = now
            console = Terminal()
            if console.is_terminal:
                console.clear()
            try:
                data = print_text(run, console)
            except UserError as error:  # no metrics yet
                console.print(str(error), style="dim", markup=False)
                data = {}
            if data.get("finished"):
                return
        time.sleep(SECONDS)


def watched(config: WatchConfig) -> Run:
    """The folder to watch. Raises UserError where it holds neither a run nor runs."""
    run = Run(user_path(config.run))
    if (run.dir / "config.yaml").exists():
        run_info(run)
    elif not runs_in(run.dir):
        raise UserError(
            f"{run.dir}: holds no run (no config.yaml); give the output_dir of an lfpo train that has started, or a "
            "folder of runs"
        )
    return run


class Server(ThreadingHTTPServer):
    """Bound to its port; serve_forever() starts it. Raises UserError for a wrong folder, host or port.

    address: the URL to open.
    """

    daemon_threads = True

    def __init__(self, config: WatchConfig) -> None:
        self.run = watched(config)
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
            data = {**data_of_folder(self.server.run), "live": True, "version": tag}
        except UserError as error:  # no metrics yet, or a file is being replaced: the page asks again
            self.close_connection = True
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n", **AGAIN)
            return
        made = ("text/html; charset=utf-8", page(data)) if url.path == "/" else ("application/json", embedded(data))
        self._answer(HTTPStatus.OK, *made, ETag=tag)

    def _answer(self, status: HTTPStatus, kind: str, text: str, **headers: str) -> None:
        """headers: beside HEADERS."""
        body = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def version(folder: Path) -> str:
    """ETag of a run's folder: changes whenever the run has written something that the page shows."""
    files = [folder / name for name in ("metrics.jsonl", "config.yaml", "notes.jsonl", "eval", "rollouts")]
    files += sorted(folder.glob("*/metrics.jsonl"))  # of a folder of runs
    state = [file.stat() for file in files if file.exists()]
    return f'"{"-".join(f"{stat.st_mtime_ns:x}-{stat.st_size:x}" for stat in state)}"'
