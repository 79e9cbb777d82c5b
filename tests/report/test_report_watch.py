"""`lfpo watch`: requests to a running server, and a page that follows a run."""

import http.client
import json
import socket
import struct
from pathlib import Path

import pytest

from lfpo.config.errors import UserError
from lfpo.config.watch import WatchConfig
from lfpo.report.watch import Server
from served_report import add_iteration, served
from written_runs import write_run


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_and_its_data_follow_the_run(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["text"])
    with served(folder) as server:
        status, headers, body = get(server, "/")
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert "connect-src 'self'" in body
        _, headers, body = get(server, "/data.json")
        assert json.loads(body)["step"] == 2
        assert get(server, "/data.json", If_None_Match=headers["ETag"])[0] == 304
        assert get(server, "/nowhere")[0] == 404
        add_iteration(folder, 3)
        status, _, body = get(server, "/data.json", If_None_Match=headers["ETag"])
        assert (status, json.loads(body)["step"]) == (200, 3)
        assert get(server, "/run.json")[0] == 404
        assert get(server, "/../config.yaml")[0] == 404
    assert not (folder / "report.html").exists()  # serving writes nothing


def test_a_run_that_has_no_metrics_yet_is_asked_again(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["text"])
    (folder / "metrics.jsonl").unlink()
    with served(folder) as server:
        status, headers, body = get(server, "/")
        assert (status, headers["Refresh"]) == (503, "2")
        assert "no metrics.jsonl" in body


def test_a_browser_that_closes_its_connection_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with served(write_run(tmp_path / "run", ["text"])) as server:
        asked = socket.create_connection(("127.0.0.1", server.server_address[1]))
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asked.close()  # at once, so that the server's read fails
        assert get(server, "/")[0] == 200
    assert capsys.readouterr().err == ""


def test_a_taken_port_is_told(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["text"])
    with served(folder) as server, pytest.raises(UserError, match=r"could not listen at 127\.0\.0\.1"):
        Server(WatchConfig(run=str(folder), port=server.server_address[1]))


def test_a_folder_of_runs_is_served(tmp_path: Path):
    for name in ("first", "second"):
        write_run(tmp_path / "runs" / name, ["text"])
    with served(tmp_path / "runs") as server:
        data = json.loads(get(server, "/data.json")[2])
        assert (data["kind"], data["live"], len(data["runs"])) == ("overview", True, 2)
        status, headers, _ = get(server, "/data.json", If_None_Match=get(server, "/data.json")[1]["ETag"])
        assert status == 304
        add_iteration(tmp_path / "runs/first", 3)
        assert get(server, "/data.json", If_None_Match=headers["ETag"])[0] == 200
