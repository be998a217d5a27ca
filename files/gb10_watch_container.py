"""Run a command in the lane's container, as `docker exec` does, over Docker's own socket.

Docker's client takes 35 ms of a processor each time, most of it to begin; these three requests take one
(https://docs.docker.com/reference/api/engine/, "Exec"). They are HTTP/1.0 by hand: an answer then comes as a
whole and ends with its connection, and http.client would be 5 MiB of memory for that. Imported by
gb10_watch_hand.py; python3 standard library only.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Any

SOCKET = "/run/docker.sock"
MOST_BYTES = 1 << 20  # of an answer
KEPT_BYTES = 65536  # of what a command has printed, its end
ENDED_SECONDS = 0.02  # a command's output ends before Docker has its exit status


def run_in(
    container: str, command: Sequence[str], timeout: float, path: str = SOCKET
) -> tuple[int | None, str]:
    """Exit status (None: Docker could not run it, or it has not ended) and what it printed, or why.

    Never raises. ``timeout`` is seconds for all of it. What has not ended then is Docker's to end.
    """
    deadline = time.monotonic() + timeout
    try:
        asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
        name = json.loads(_ask(path, "POST", f"/containers/{container}/exec", asked, deadline))["Id"]
        output = printed(_ask(path, "POST", f"/exec/{name}/start", {"Detach": False}, deadline))
        while True:
            seen = json.loads(_ask(path, "GET", f"/exec/{name}/json", None, deadline))
            if not seen["Running"]:
                break
            time.sleep(ENDED_SECONDS)
        status = seen["ExitCode"]
    except TimeoutError:
        return None, f"{command[0]} has not ended after {timeout:.0f} s"
    except OSError as error:
        return None, f"Docker: {error.strerror or error}"
    except (ValueError, LookupError, TypeError) as error:
        return None, f"Docker has answered in a shape that is not its own ({type(error).__name__}: {error})"
    text = output[-KEPT_BYTES:].decode(errors="replace")
    return (status if isinstance(status, int) else None), text


def printed(stream: bytes) -> bytes:
    """Both outputs of a command out of Docker's stream: parts, each with a head of eight bytes, the last
    four of which are its length."""
    output = b""
    while stream:
        end = 8 + int.from_bytes(stream[4:8], "big")
        output, stream = output + stream[8:end], stream[end:]
    return output


def _ask(path: str, method: str, target: str, body: Any, deadline: float) -> bytes:
    """What Docker answers. Raises TimeoutError, OSError with Docker's own words, ValueError."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {target} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _in_time(connection, deadline)
        connection.connect(path)
        connection.sendall(head.encode() + content)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
            if len(answer) > MOST_BYTES:
                raise OSError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
            _in_time(connection, deadline)
    first, _, answer = answer.partition(b"\r\n\r\n")
    status = int((first.split(None, 2) + [b""] * 2)[1])
    if not 200 <= status < 300:
        raise OSError(str(json.loads(answer)["message"]))
    return answer


def _in_time(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
