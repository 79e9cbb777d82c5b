"""A report page as `lfpo watch` serves it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lfpo.config.watch import WatchConfig
from lfpo.report.watch import Server
from written_runs import record, write_rows


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[Server]:
    server = Server(WatchConfig(run=str(folder), host=host, port=0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def add_iteration(folder: Path, step: int) -> None:
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    rows = [record("brand new", rewards={"form": 1.0, "fact": 1.0}, reward=2.0, r=1.0)]
    write_rows(folder / f"rollouts/step-{step}.jsonl", rows)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**last, "step": step, "reward": 0.875}) + "\n")
