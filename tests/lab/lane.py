"""The lane as its users meet it, by plain commands over SSH: not with the code under test."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.host import LabHost

UNIT = "llamacpp-playground.service"
CONTAINER = "llamacpp-playground"
PORT = 10103
KEY = "/etc/llamacpp-playground/api-key"
PRESETS = "/etc/llamacpp-playground/models.ini"


def curl(
    host: LabHost, path: str, body: object = None, *, key: str | None = None, limit: int = 60
) -> tuple[int, str]:
    """Status and body of a call on the host. The key is read there; ``key`` gives another one, "" none."""
    shown = f"$(cat {KEY})" if key is None else key
    line = f'curl -s -m {limit} -w "\\n%{{http_code}}" http://127.0.0.1:{PORT}{path}'
    if shown:
        line += f' -H "Authorization: Bearer {shown}"'
    stdin = None
    if body is not None:
        line += " -H 'Content-Type: application/json' --data-binary @-"
        stdin = json.dumps(body)
    answer = host.ssh(line, sudo=True, check=False, stdin=stdin, limit=limit + 10).stdout
    content, _, status = answer.rpartition("\n")
    return int(status or 0), content


def chat(host: LabHost, model: str = "tiny-a", tokens: int = 8, limit: int = 60) -> tuple[int, Any]:
    """Status and parsed answer of a short chat."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model, "messages": messages, "max_tokens": tokens}
    status, content = curl(host, "/v1/chat/completions", body, limit=limit)
    return status, json.loads(content) if content.startswith("{") else content


def models(host: LabHost) -> dict[str, str]:
    """Model name to state, as the router says."""
    status, content = curl(host, "/models")
    assert status == 200, content
    return {model["id"]: model["status"]["value"] for model in json.loads(content)["data"]}


def unit(host: LabHost, name: str = UNIT) -> str:
    """ActiveState of a unit."""
    return host.ssh(f"systemctl show --property=ActiveState --value {name}").stdout.strip()


def begin_endless(host: LabHost, model: str) -> None:
    """Leave a request in the works that never ends: the accelerator stands still under it."""
    assert chat(host, model)[0] == 200
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1500})
    host.ssh(
        "pkill -STOP --parent $(systemctl show --property=MainPID --value standin-accelerator); "
        f"(curl -s -m 120 -H \"Authorization: Bearer $(cat {KEY})\" -d '{body}' "
        f"http://127.0.0.1:{PORT}/v1/chat/completions >/dev/null 2>&1 &) ; sleep 1",
        sudo=True,
    )


def journal(host: LabHost, name: str = UNIT) -> str:
    """The unit's journal of this boot."""
    return host.ssh(f"journalctl --unit {name} --boot --output cat --no-pager", sudo=True).stdout


def container_id(host: LabHost) -> str:
    """Id of the lane's container, empty when it does not run."""
    line = f"docker ps --no-trunc --quiet --filter name=^{CONTAINER}$"
    return host.ssh(line, sudo=True).stdout.strip()


def wait_answering(host: LabHost, seconds: float = 60) -> None:
    """Wait until a chat gets 200. Nobody does anything meanwhile."""
    until = time.monotonic() + seconds
    while True:
        status, answer = chat(host)
        if status == 200:
            return
        assert time.monotonic() < until, (
            f"no answer in {seconds} s: {status} {answer}\n{journal(host)[-2000:]}"
        )
        time.sleep(0.5)


@contextmanager
def tunnel(host: LabHost, port: int = PORT) -> Iterator[int]:
    """A local port that leads to the host's own ``port`` over SSH, as a user's client would reach it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    line = host.ssh_command()
    process = subprocess.Popen(
        [
            *line[:-1],
            "-N",
            "-o",
            "ExitOnForwardFailure=yes",
            "-L",
            f"127.0.0.1:{local}:127.0.0.1:{port}",
            line[-1],
        ]
    )
    try:
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", local), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until, "the tunnel does not open"
                time.sleep(0.1)
        yield local
    finally:
        process.terminate()
        process.wait(10)
