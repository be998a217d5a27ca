"""A probe's way into the container: what Docker 26.1.5 answers, and what it should not."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gb10_watch_container import MOST_BYTES, printed, run_in

OUT = b"\x01\0\0\0\0\0\0\x04out\n" + b"\x02\0\0\0\0\0\0\x04err\n"
JSON = "HTTP/1.0 {status} Whatever\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n\r\n"
NO_PROGRAM = (
    "OCI runtime exec failed: exec failed: unable to start container process: "
    'exec: "nothing": executable file not found in $PATH: unknown\r\n'
)


def said(status: int, content: Any) -> bytes:
    return JSON.format(status=status).encode() + json.dumps(content).encode() + b"\n"


class Docker(socketserver.UnixStreamServer):
    """Gives these answers, one for each connection; ``asked`` is what came."""

    def __init__(self, path: Path) -> None:
        self.path, self.answers, self.asked = str(path), list[bytes](), list[str]()
        self.free = threading.Event()  # until then an empty answer is none at all
        super().__init__(self.path, Once)


class Once(socketserver.BaseRequestHandler):
    server: Docker

    def handle(self) -> None:
        self.server.asked.append(self.request.recv(65536).decode())
        answer = self.server.answers.pop(0) if self.server.answers else b""
        if not answer:
            self.server.free.wait(10)
        with contextlib.suppress(OSError):
            self.request.sendall(answer)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    with Docker(tmp_path / "docker.sock") as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.02,))
        thread.start()
        yield found
        found.free.set()
        found.shutdown()
        thread.join()


def test_as_docker_exec_does(docker: Docker) -> None:
    running, ended = ({"Running": True, "ExitCode": None}, {"Running": False, "ExitCode": 3})
    docker.answers += [said(201, {"Id": "4f1d"}), STREAM + OUT, said(200, running), said(200, ended)]
    assert run_in("lane", ["sh", "-c", 'echo "é"'], 5, docker.path) == (3, "out\nerr\n")
    heads = [request.partition("\r\n")[0] for request in docker.asked]
    assert heads == [
        "POST /containers/lane/exec HTTP/1.0",
        "POST /exec/4f1d/start HTTP/1.0",
        "GET /exec/4f1d/json HTTP/1.0",
        "GET /exec/4f1d/json HTTP/1.0",
    ]
    head, _, body = docker.asked[0].partition("\r\n\r\n")
    assert json.loads(body) == {"AttachStdout": True, "AttachStderr": True, "Cmd": ["sh", "-c", 'echo "é"']}
    assert f"\r\nContent-Length: {len(body.encode())}" in head


def test_a_program_that_is_not_there(docker: Docker) -> None:
    part = b"\x01\0\0\0" + len(NO_PROGRAM).to_bytes(4, "big") + NO_PROGRAM.encode()
    docker.answers += [said(201, {"Id": "1"}), STREAM + part, said(200, {"Running": False, "ExitCode": 126})]
    assert run_in("lane", ["nothing"], 5, docker.path) == (126, NO_PROGRAM)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([said(404, {"message": "No such container: lane"})], "Docker: No such container: lane"),
        ([said(409, {"message": "container 4f1d is not running"})], "Docker: container 4f1d is not running"),
        ([said(201, {"Id": "1"}), said(500, {"message": "no room"})], "Docker: no room"),
        # dockerd is started anew meanwhile.
        (
            [said(201, {"Id": "1"}), STREAM + OUT[:9], said(404, {"message": "No such exec instance: 1"})],
            "Docker: No such exec instance: 1",
        ),
        ([b"HTTP/1.0 500 X\r\n\r\nplain"], "Docker has answered in a shape that is not its own (JSON"),
        ([b"HTTP"], "Docker has answered in a shape that is not its own (ValueError"),
        ([b"\r\n\r\n{}"], "Docker has answered in a shape that is not its own (ValueError"),
        ([said(201, ["Id"])], "Docker has answered in a shape that is not its own (TypeError"),
        ([said(201, {})], "Docker has answered in a shape that is not its own (KeyError"),
        ([said(201, {"Id": "1"}), STREAM + bytes(MOST_BYTES)], "Docker: the answer is longer than 1 MiB"),
    ],
)  # fmt: skip
def test_what_did_not_run(docker: Docker, answers: list[bytes], text: str) -> None:
    docker.answers += answers
    status, why = run_in("lane", ["true"], 5, docker.path)
    assert (status, why[: len(text)]) == (None, text)


@pytest.mark.parametrize("before", range(3))
def test_what_does_not_end(docker: Docker, before: int) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM][:before]
    assert run_in("lane", ["sleep"], 0.2, docker.path) == (None, "sleep has not ended after 0 s")


def test_what_ends_and_docker_does_not_say_so(docker: Docker) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM, *[said(200, {"Running": True})] * 200]
    assert run_in("lane", ["sleep"], 0.3, docker.path) == (None, "sleep has not ended after 0 s")


def test_an_end_without_a_status_is_not_known(docker: Docker) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM + OUT, said(200, {"Running": False, "ExitCode": None})]
    assert run_in("lane", ["true"], 5, docker.path) == (None, "out\nerr\n")


def test_docker_is_away(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    assert run_in("lane", ["true"], 5, path) == (None, "Docker: No such file or directory")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert run_in("lane", ["true"], 5, path) == (None, "Docker: Connection refused")


def test_a_stream_that_was_cut_is_read_as_far_as_it_goes() -> None:
    assert [printed(OUT[:end]) for end in (0, 3, 8, 10, 12, 15, 24)] == [
        b"", b"", b"", b"ou", b"out\n", b"out\n", b"out\nerr\n",
    ]  # fmt: skip
