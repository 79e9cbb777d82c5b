"""A chat endpoint on 127.0.0.1 that answers as it is told to, for tests of the judge."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW = 0.2  # seconds between the two halves of a slow answer


def chat(text: str) -> dict[str, Any]:
    """The body of a chat completion with this text, of 10 + 2 tokens."""
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }


class Endpoint(ThreadingHTTPServer):
    """Answers a request by its message, `FAULT TIMES ANSWER`: the fault for the first TIMES requests of that message,
    then a chat completion with the text ANSWER. Any other message is answered with its body in `bodies`, or else with
    `text`, or, if that is empty, with itself."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, text: str = "8"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.text = text
        self.bodies: dict[str, str] = {}
        self.seen: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.times: Counter[str] = Counter()
        self.open_now, self.most_open = 0, 0
        self.closing, self.lock = threading.Event(), threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *arguments: Any) -> None:
        """Nothing is printed for a connection that the client, or a fault, has closed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = body["messages"][-1]["content"]
        with server.lock:
            server.seen.append(body)
            server.keys.add(self.headers["Authorization"])
            server.times[message] += 1
            server.open_now += 1
            server.most_open = max(server.most_open, server.open_now)
        try:
            words = message.split(" ", 2)
            fault = getattr(self, f"fault_{words[0]}", None) if len(words) == 3 else None
            text = words[2] if fault else server.text or message
            if fault and server.times[message] <= int(words[1]):
                fault(text)
            else:
                self.reply(server.bodies.get(message) or json.dumps(chat(text)))
        finally:
            with server.lock:
                server.open_now -= 1

    def head(self, length: int, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def reply(self, body: str, *head: Any, cut: int = 0, pause: float = 0.0, **headers: Any) -> None:
        """Send a body. cut: bytes that are promised and not sent, after which the connection is closed. pause: seconds
        in the middle of the body."""
        data = body.encode()
        self.head(len(data), *head, **headers)
        self.wfile.write(data[:20])
        self.wfile.flush()
        time.sleep(pause)
        self.wfile.write(data[20 : len(data) - cut])
        self.close_connection = bool(cut)

    def fault_slow(self, text: str) -> None:
        self.reply(json.dumps(chat(text)), pause=SLOW)

    def fault_hangs(self, text: str) -> None:
        self.server.closing.wait(30)
        self.close_connection = True

    def fault_busy(self, text: str) -> None:
        self.reply('{"error": {"message": "too many requests"}}', 429, Retry_After="0.3")

    def fault_broken(self, text: str) -> None:
        self.reply('{"error": {"message": "internal"}}', 500)

    def fault_reset(self, text: str) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def fault_garbage(self, text: str) -> None:
        self.reply('{"choices": [{')

    def fault_empty(self, text: str) -> None:
        self.reply(json.dumps({**chat(text), "choices": []}))

    def fault_cut(self, text: str) -> None:
        self.reply(json.dumps(chat(text)), cut=40)

    def fault_html(self, text: str) -> None:
        self.reply("<html>gateway</html>", 200, "text/html")

    def fault_denied(self, text: str) -> None:
        self.reply(json.dumps({"error": {"message": f"wrong key {self.headers['Authorization']}"}}), 401)

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def endpoint(text: str = "8") -> Iterator[Endpoint]:
    with Endpoint(text) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
