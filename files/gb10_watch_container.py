"""Commands in the lane's container, as `docker exec` does, over Docker's own socket.

Docker's client takes 35 ms of a processor each time, most of it to begin; these three requests take one
(https://docs.docker.com/reference/api/engine/, "Exec"). They are HTTP/1.0 by hand: an answer then comes as a
whole and ends with its connection, and http.client would be 5 MiB of memory for that. Imported by
gb10_watch_hand.py; python3 standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

SOCKET = "/run/docker.sock"
MOST_BYTES = 1 << 20  # of an answer
KEPT_BYTES = 65536  # of what a command has printed, its end
ENDED_SECONDS = 0.02  # a command's output ends before Docker has its exit status


class Container:
    """The container ``name`` of the Docker that listens at ``path``."""

    def __init__(self, name: str, path: str = SOCKET) -> None:
        self.name, self.path = name, path
        self._begun: dict[tuple[str, ...], str] = {}  # a command that has not been seen to end, Docker's id

    def run(self, command: Sequence[str], timeout: float) -> tuple[int | None, str]:
        """Exit status (None: Docker could not run it, or it has not ended) and what it printed, or why.

        Never raises. ``timeout`` is seconds for all of it. Docker has no way to end a command: what has not
        ended in time goes on, and is not begun a second time beside itself as long as this program lives.
        """
        deadline, at_work, key = time.monotonic() + timeout, "Docker", tuple(command)
        try:
            if key in self._begun and self._runs(self._begun[key], deadline):
                return None, f"{command[0]} of an earlier look still hangs"
            asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
            name = self._answer("POST", f"/containers/{self.name}/exec", asked, deadline)["Id"]
            at_work, self._begun[key] = command[0], name
            output = printed(_ask(self.path, "POST", f"/exec/{name}/start", {"Detach": False}, deadline))
            while (seen := self._answer("GET", f"/exec/{name}/json", None, deadline))["Running"]:
                time.sleep(ENDED_SECONDS)
            self._begun.pop(key, None)
            status = seen["ExitCode"]
        except TimeoutError:
            return None, f"{at_work} has not ended after {timeout:.0f} s"
        except OSError as error:
            return None, f"Docker: {error.strerror or error}"
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"
            return None, f"Docker has answered in a shape that is not its own ({said})"
        text = output[-KEPT_BYTES:].decode(errors="replace")
        return (status if isinstance(status, int) else None), text

    def _runs(self, name: str, deadline: float) -> bool:
        try:
            seen = self._answer("GET", f"/exec/{name}/json", None, deadline)
        except FileNotFoundError:
            return False  # Docker or the container was started anew
        if not (seen["Running"] and seen["Pid"]):  # without a process its start hangs
            return bool(seen["Running"])
        # Docker learns of an end by one message, which is lost where containerd is started anew just then.
        try:
            os.kill(seen["Pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is there
        return True

    def _answer(self, method: str, target: str, body: Any, deadline: float) -> Any:
        return json.loads(_ask(self.path, method, target, body, deadline))


def printed(stream: bytes) -> bytes:
    """Both outputs of a command out of Docker's stream: parts, each with a head of eight bytes, the last
    four of which are its length."""
    parts, at = [], 0
    while at < len(stream):
        end = at + 8 + int.from_bytes(stream[at + 4 : at + 8], "big")
        parts.append(stream[at + 8 : end])
        at = end
    return b"".join(parts)


def _ask(path: str, method: str, target: str, body: Any, deadline: float) -> bytes:
    """What Docker answers. Raises TimeoutError, OSError with Docker's own words (FileNotFoundError where it
    knows of no such thing), ValueError."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {target} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _in_time(connection, deadline)
        connection.connect(path)
        connection.sendall(head.encode() + content)
        answer = bytearray()
        while chunk := connection.recv(65536):
            answer += chunk
            if len(answer) > MOST_BYTES:
                raise OSError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
            _in_time(connection, deadline)
    first, _, content = bytes(answer).partition(b"\r\n\r\n")
    status = int((first.split(None, 2) + [b""] * 2)[1])
    if not 200 <= status < 300:
        raise (FileNotFoundError if status == 404 else OSError)(str(json.loads(content)["message"]))
    return content


def _in_time(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
