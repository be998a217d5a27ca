"""A probe's way into the container: what Docker 26.1.5 answers, and what it should not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gb10_watch_container import MOST_BYTES, Container, printed

OUT = b"\x01\0\0\0\0\0\0\x04out\n" + b"\x02\0\0\0\0\0\0\x04err\n"
JSON = "HTTP/1.0 {status} Whatever\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n\r\n"
GONE = 2**22 + 1  # no process has it: a kernel's highest is 2**22
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
    assert Container("lane", docker.path).run(["sh", "-c", 'echo "é"'], 5) == (3, "out\nerr\n")
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
    assert Container("lane", docker.path).run(["nothing"], 5) == (126, NO_PROGRAM)


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
        ([b"HTTP/1.0 201 X\r\n\r\n" + b"[" * 200000], "Docker has answered in a shape that is not its own ("),
        ([said(201, {})], "Docker has answered in a shape that is not its own (KeyError"),
        ([said(201, {"Id": "1"}), STREAM + bytes(MOST_BYTES)], "Docker: the answer is longer than 1 MiB"),
    ],
)  # fmt: skip
def test_what_did_not_run(docker: Docker, answers: list[bytes], text: str) -> None:
    docker.answers += answers
    status, why = Container("lane", docker.path).run(["true"], 5)
    assert (status, why[: len(text)]) == (None, text)


@pytest.mark.parametrize(("before", "who"), [(0, "Docker"), (1, "sleep"), (2, "sleep")])
def test_what_does_not_end(docker: Docker, before: int, who: str) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM][:before]
    assert Container("lane", docker.path).run(["sleep"], 0.2) == (None, f"{who} has not ended after 0 s")


def test_what_has_not_ended_is_not_begun_again(docker: Docker) -> None:
    container = Container("lane", docker.path)
    docker.answers += [said(201, {"Id": "1"})]
    assert container.run(["sleep", "9"], 0.2)[0] is None
    docker.free.set()
    for pid in (0, os.getpid()):  # one whose start hangs has no process
        docker.answers += [said(200, {"Running": True, "Pid": pid})]
        assert container.run(["sleep", "9"], 5) == (None, "sleep of an earlier look still hangs")
    # Another command is none of it.
    ended = said(200, {"Running": False, "ExitCode": 0})
    docker.answers += [said(201, {"Id": "2"}), STREAM + OUT, ended]
    assert container.run(["true"], 5)[0] == 0
    docker.answers += [ended, said(201, {"Id": "3"}), STREAM + OUT, ended]
    assert container.run(["sleep", "9"], 5)[0] == 0
    docker.answers += [said(201, {"Id": "4"}), STREAM + OUT, ended]
    assert container.run(["sleep", "9"], 5)[0] == 0
    assert [request.split()[1] for request in docker.asked] == [
        "/containers/lane/exec", "/exec/1/start", "/exec/1/json", "/exec/1/json",
        "/containers/lane/exec", "/exec/2/start", "/exec/2/json",
        "/exec/1/json", "/containers/lane/exec", "/exec/3/start", "/exec/3/json",
        "/containers/lane/exec", "/exec/4/start", "/exec/4/json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "left", [said(404, {"message": "No such exec instance: 1"}), said(200, {"Running": True, "Pid": GONE})]
)
def test_what_has_gone_without_a_word_has_ended(docker: Docker, left: bytes) -> None:
    container = Container("lane", docker.path)
    docker.answers += [said(201, {"Id": "1"})]
    assert container.run(["sleep", "9"], 0.2)[0] is None
    docker.free.set()
    docker.answers += [left, said(201, {"Id": "2"})]
    docker.answers += [STREAM + OUT, said(200, {"Running": False, "ExitCode": 0})]
    assert container.run(["sleep", "9"], 5)[0] == 0


def test_what_ends_and_docker_does_not_say_so(docker: Docker) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM, *[said(200, {"Running": True})] * 200]
    assert Container("lane", docker.path).run(["sleep"], 0.3) == (None, "sleep has not ended after 0 s")


def test_an_end_without_a_status_is_not_known(docker: Docker) -> None:
    docker.answers += [said(201, {"Id": "1"}), STREAM + OUT, said(200, {"Running": False, "ExitCode": None})]
    assert Container("lane", docker.path).run(["true"], 5) == (None, "out\nerr\n")


def test_docker_is_away(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    assert Container("lane", path).run(["true"], 5) == (None, "Docker: No such file or directory")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert Container("lane", path).run(["true"], 5) == (None, "Docker: Connection refused")


def test_a_stream_that_was_cut_is_read_as_far_as_it_goes() -> None:
    assert [printed(OUT[:end]) for end in (0, 3, 8, 10, 12, 15, 24)] == [
        b"", b"", b"", b"ou", b"out\n", b"out\n", b"out\nerr\n",
    ]  # fmt: skip
