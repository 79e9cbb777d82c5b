"""A server with the contract of SGLang's endpoints that lfpo.contrib.sglang calls, and lfpo's own sampler behind it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lfpo.config.sampler import SamplerConfig
from lfpo.models import load_model
from lfpo.rollout.sampling import rollout


class Server(ThreadingHTTPServer):
    """Serves a model from a thread, until `close`.

    greedy: decode without sampling, as released servers do. refuse: the message with which new weights are refused.
    stale: take new weights' version without the weights' name, as a server does whose update was lost.
    """

    daemon_threads = True

    def __init__(
        self, model: str | Path, threshold: float, *, greedy: bool = False, refuse: str = "", stale: bool = False
    ):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.threshold, self.greedy = load_model(model), threshold, greedy
        self.refuse, self.stale = refuse, stale
        self.version, self.paused = "default", False
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def generate(self, input_ids: list[int], sampling_params: dict[str, Any], stream: bool) -> dict[str, Any]:
        assert not stream and not self.paused and sampling_params["n"] == 1
        model, length = self.model, sampling_params["max_new_tokens"]
        assert (len(input_ids) + length) % model.block_length == 0
        temperature = 0.0 if self.greedy else sampling_params["temperature"]
        sampler = SamplerConfig(gen_length=length, threshold=self.threshold, temperature=temperature)
        found = rollout(model, [input_ids], sampler, [sampling_params["sampling_seed"]])
        ids = found.tokens[0, : int(found.lengths[0])].tolist()  # up to the first EOS
        return {"output_ids": ids, "text": "", "meta_info": {"weight_version": self.version}}

    def pause_generation(self, mode: str) -> dict[str, Any]:
        self.paused = True
        return {"status": "ok"}

    def continue_generation(self) -> dict[str, Any]:
        self.paused = False
        return {"status": "ok"}

    def update_weights_from_disk(self, model_path: str, weight_version: str, flush_cache: bool) -> dict[str, Any]:
        assert self.paused and flush_cache
        if self.refuse:
            return {"success": False, "message": self.refuse, "num_paused_requests": 0}
        if not self.stale:
            self.model, self.version = load_model(model_path), weight_version
        return {"success": True, "message": "", "num_paused_requests": 0}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.strip("/")
        with self.server.lock:
            self.server.seen.append((path, body))
            answer = json.dumps(getattr(self.server, path)(**body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed."""
