#!/usr/bin/env python3
"""Talk to the lane's router on its own host, with its key, which never leaves the host.

Usage:
  gb10_router.py LANE.json verify        wait for the router, load the default model if none is loaded,
                                         complete a short chat, say on which device the model runs
  gb10_router.py LANE.json probe         the same with what is loaded already; loads and evicts nothing
                                         (--model NAME: with this one)
  gb10_router.py LANE.json reload        let the router read its preset file again
  gb10_router.py LANE.json chat TEXT     one streamed answer (--model NAME before TEXT)

verify and probe print one JSON object: {"state": "answered" | "idle" | "wrong" | "down", "reason": text,
"model": name, "tokens_per_second": number, "device": name, "holder": text}.
Exit status: 0 answered (probe: always), 1 not, 2 bad usage.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

START_SECONDS = 180  # for the router to listen
LOAD_SECONDS = 900  # for a 50 GB model from a slow disk
PROBE_SECONDS = 60
ASK_SECONDS = 30
VERIFY_TOKENS = 32
# Far more than any answer of a router. As Python's objects it may take thirty times that, and the watch has
# 128 MiB.
ANSWER_BYTES = 1 << 20
QUESTION = "Count from one to twenty in words."


class RouterError(Exception):
    """The router did not do what was asked; the text says why, in one line."""


class _Until(io.RawIOBase):
    """What a socket's file ``raw`` gives until ``deadline``, a time of ``time.monotonic``."""

    def __init__(self, connection: socket.socket, raw: io.RawIOBase, deadline: float) -> None:
        self.connection, self.raw, self.deadline = connection, raw, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As io's. Raises OSError, TimeoutError after the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.raw.readinto(buffer)

    def close(self) -> None:
        self.raw.close()
        super().close()


def end_by(connection: http.client.HTTPConnection, deadline: float) -> None:
    """Let its answer come as a whole, header and all, by ``deadline`` or raise TimeoutError: a timeout of
    http.client's is one for each read alone."""

    def answer(sock: socket.socket, *arguments: Any, **more: Any) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, *arguments, **more)
        response.fp = io.BufferedReader(_Until(sock, response.fp.detach(), deadline))
        return response

    connection.response_class = answer  # type: ignore[assignment]  # it is only called


def request(lane: dict[str, Any], method: str, path: str, body: Any = None, timeout: float = 30) -> Any:
    """One call to the router, its JSON answer. Raises `RouterError`, OSError where nothing listens."""
    content = fetch(lane, method, path, body, timeout)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        what = f"{method} {path.partition('?')[0]}"
        raise RouterError(f"{what} answered with something that is not JSON") from None


def fetch(lane: dict[str, Any], method: str, path: str, body: Any = None, timeout: float = 30) -> bytes:
    """The same, and the answer as it came."""
    what = f"{method} {path.partition('?')[0]}"
    deadline = time.monotonic() + timeout
    try:
        response = _send(lane, method, path, body, timeout, deadline=deadline)
        content = _read(response, deadline)
    except TimeoutError:
        raise TimeoutError(f"{what} got no answer in {timeout:.0f} s") from None
    if response.status != 200:
        raise RouterError(f"{what} answered {response.status}: {_message(content)}")
    return content


def _send(
    lane: dict[str, Any],
    method: str,
    path: str,
    body: Any,
    timeout: float,
    with_key: bool = True,
    deadline: float | None = None,
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(lane["host"], lane["port"], timeout=timeout)
    if deadline is not None:
        end_by(connection, deadline)
    headers = {"Content-Type": "application/json"}
    if with_key:
        headers["Authorization"] = f"Bearer {_key(lane)}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()
    except http.client.HTTPException as error:
        # Docker's proxy accepts and closes while the server in the container is not listening yet.
        raise ConnectionError(f"no HTTP answer ({type(error).__name__})") from None


def _key(lane: dict[str, Any]) -> str:
    with open(lane["key_file"], "rb") as file:
        key = file.read(4096).strip()
    # llama.cpp passes over a line that begins with #, and asks for no key where it finds none.
    if not re.fullmatch(rb"[\x21-\x7e]+", key) or key.startswith(b"#"):
        raise RouterError(f"{lane['key_file']} does not hold an API key: remove it and run the deploy again")
    return key.decode("ascii")


def check_key_is_asked_for(lane: dict[str, Any]) -> None:
    """Raises `RouterError` when the router would serve somebody without a key. Loads nothing."""
    deadline = time.monotonic() + ASK_SECONDS
    response = _send(lane, "POST", "/v1/chat/completions", {}, ASK_SECONDS, False, deadline)
    _read(response, deadline)
    if response.status != 401:
        raise RouterError(f"the router asks for no API key (it answered {response.status} without one)")


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body. Raises `RouterError` when it has no end, TimeoutError after ``deadline``, ConnectionError
    when it is cut off."""
    content, left = b"", response.length
    try:
        while left is None or left > 0:
            chunk = response.read1(65536 if left is None else min(left, 65536))
            content += chunk
            if not chunk:
                break
            if len(content) > ANSWER_BYTES:
                raise RouterError(f"the answer is longer than {ANSWER_BYTES >> 20} MiB: is this llama.cpp?")
            if time.monotonic() > deadline:
                raise TimeoutError
            left = None if left is None else left - len(chunk)
    except http.client.HTTPException:
        raise ConnectionError("the answer was cut off") from None
    if left:
        raise ConnectionError("the answer was cut off")
    return content


def _message(content: bytes) -> str:
    try:
        return one_line(str(json.loads(content)["error"]["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return one_line(content[:200].decode(errors="replace"))


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, at most 500 characters of it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:500]).split())


def model_states(answer: Any) -> dict[str, tuple[str, bool]]:
    """Model name to (state, failed) from the answer of ``/models``. Raises `RouterError` on another shape."""
    try:
        return {
            str(model["id"]): (str(model["status"]["value"]), bool(model["status"].get("failed", False)))
            for model in answer["data"]
        }
    except (KeyError, TypeError, AttributeError):
        raise RouterError("GET /models answered in a shape that is not llama.cpp's router's") from None


def wait_for_router(lane: dict[str, Any], seconds: float) -> dict[str, tuple[str, bool]]:
    """The models once the router answers. Raises `RouterError` after ``seconds``, or when its unit failed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return model_states(request(lane, "GET", "/models"))
        except OSError as error:
            reason = str(error)
        if unit_state(lane) == "failed":
            raise RouterError(f"unit {lane['lane']}.service failed: {last_words(lane)}")
        if time.monotonic() >= deadline:
            raise RouterError(
                f"no answer on port {lane['port']} in {seconds:.0f} s: {reason}: {last_words(lane)}"
            )
        time.sleep(0.5)


def unit_state(lane: dict[str, Any]) -> str:
    command = ["systemctl", "is-active", f"{lane['lane']}.service"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def journal(lane: dict[str, Any]) -> list[str]:
    """The last lines of the unit's journal."""
    command = [
        "journalctl",
        "--unit",
        f"{lane['lane']}.service",
        "--output",
        "cat",
        "--lines",
        "60",
        "--no-pager",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def last_words(lane: dict[str, Any]) -> str:
    """The refusal or the last error in the unit's journal, or its last line."""
    # A backtrace is for who has the program's symbols.
    lines = [line for line in journal(lane) if not re.search(r"\[0x[0-9a-f]+\]", line)]
    telling = [line for line in lines if re.search(r"REFUSING|error|invalid|failed", line, re.IGNORECASE)]
    return (telling or lines or ["its journal is empty"])[-1].strip()


def load_error(lines: list[str]) -> str:
    """Why the last model did not load, or nothing: the first error line of its process.

    Such a line is ``[PORT] TIME E TEXT``, or ``[PORT] error TEXT`` before the log is set up. The errors after
    it only say that there was one.
    """
    errors = [
        match for line in lines if (match := re.match(r"\[(\d+)\] (?:[0-9.]+ E |(?=error ))(.+)", line))
    ]
    return next((one_line(match[2]) for match in errors if match[1] == errors[-1][1]), "")


def complete(lane: dict[str, Any], model: str, timeout: float) -> float:
    """One short chat completion: its tokens per second as the server measured them."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": VERIFY_TOKENS,
        "temperature": 0,
    }
    answer = request(lane, "POST", "/v1/chat/completions", body, timeout)
    try:
        speed = float(answer["timings"]["predicted_per_second"])
        if not math.isfinite(speed):
            raise ValueError(speed)
        return speed
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RouterError("the chat completion has no timings: is this llama.cpp?") from None


def child_process(lane: dict[str, Any], model: str) -> int:
    """Process id, on the host, of the server that the router runs for ``model``."""
    command = ["docker", "top", lane["lane"], "-eo", "pid,args"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in result.stdout.splitlines():
        pid, _, arguments = line.strip().partition(" ")
        if re.search(rf"--alias {re.escape(model)}(,|\s|$)", arguments) and pid.isdigit():
            return int(pid)
    raise RouterError(f"no process with --alias {model} in container {lane['lane']}")


def accelerator_holder(pid: int, signal: dict[str, Any], proc: str = "/proc") -> str:
    """How process ``pid`` holds the accelerator, in words; empty when it does not."""
    if signal["kind"] == "file":
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            # A driver that was loaded anew has made its nodes anew: the old one is held all the same.
            if any(line.rstrip().removesuffix(" (deleted)").endswith(signal["path"]) for line in maps):
                return f"process {pid} has {signal['path']} mapped"
        if signal["path"] in (name.removesuffix(" (deleted)") for name in _open_files(pid, proc)):
            return f"process {pid} has {signal['path']} open"
        return ""
    sockets = set(_open_files(pid, proc))
    with open(f"{proc}/{pid}/net/tcp", encoding="ascii") as table:
        for row in table.readlines()[1:]:
            fields = row.split()
            remote_port = int(fields[2].rpartition(":")[2], 16)
            established = fields[3] == "01"
            if established and remote_port == signal["port"] and f"socket:[{fields[9]}]" in sockets:
                return f"process {pid} is connected to port {remote_port}"
    return ""


def _open_files(pid: int, proc: str) -> Iterator[str]:
    folder = f"{proc}/{pid}/fd"
    for name in os.listdir(folder):
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # closed while we looked


def examine(lane: dict[str, Any], model: str, timeout: float) -> dict[str, Any]:
    """Chat with ``model`` and look where it runs. Raises `RouterError`."""
    speed = complete(lane, model, timeout)
    holder = accelerator_holder(child_process(lane, model), lane["signal"])
    state, reason = "answered", ""
    if not holder:
        state, reason = "wrong", f"{model} answers, but its process does not hold {lane['device']}"
    return {
        "state": state,
        "reason": reason,
        "model": model,
        "tokens_per_second": round(speed, 1),
        "device": lane["device"] if holder else "CPU",
        "holder": holder,
    }


def idle(lane: dict[str, Any], states: dict[str, tuple[str, bool]]) -> dict[str, Any]:
    """What to say of a router with nothing loaded: whether a model could be, as far as a look tells."""
    failed = sorted(name for name, (_, has_failed) in states.items() if has_failed)
    if failed:
        why = load_error(journal(lane))
        return {"state": "wrong", "reason": f"{failed[0]} did not load{': ' if why else ''}{why}"}
    command = ["docker", "exec", lane["lane"], "llama-server", "--list-devices"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"state": "down", "reason": f"llama-server --list-devices did not end in {ASK_SECONDS} s"}
    if done.returncode in (125, 126, 127):  # Docker's own: llama-server was not run
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"state": "down", "reason": one_line(f"docker exec: {said}")}
    if done.returncode == 0 and f"{lane['device']}: " in done.stdout:
        return {"state": "idle", "reason": "the router answers, no model is loaded"}
    return {
        "state": "wrong",
        "reason": f"no model is loaded, and a new process does not get {lane['device']}",
    }


def pick_loaded(lane: dict[str, Any], states: dict[str, tuple[str, bool]]) -> str:
    """The default model if it is loaded, else any loaded one, else an empty text."""
    loaded = [name for name, (state, _) in states.items() if state == "loaded"]
    default = lane["default_model"]
    return default if default in loaded else (loaded or [""])[0]


def verify(lane: dict[str, Any]) -> dict[str, Any]:
    """Wait, chat with a loaded model or else load the default one, look at the device."""
    try:
        states = wait_for_router(lane, START_SECONDS)
        check_key_is_asked_for(lane)
        states = _settled(lane, states)
        # With something loaded, the default model's load could evict it: any loaded model proves the lane.
        return examine(lane, pick_loaded(lane, states) or lane["default_model"], LOAD_SECONDS)
    except (RouterError, OSError) as error:
        why = load_error(journal(lane)) if "failed to load" in str(error) else ""
        return {"state": "down", "reason": f"{error}: {why}" if why else str(error)}


def _settled(lane: dict[str, Any], states: dict[str, tuple[str, bool]]) -> dict[str, tuple[str, bool]]:
    # Models that load at the start are on their way: another request beside them could evict one.
    deadline = time.monotonic() + LOAD_SECONDS
    while any(state == "loading" for state, _ in states.values()) and time.monotonic() < deadline:
        time.sleep(0.5)
        states = model_states(request(lane, "GET", "/models"))
    return states


def probe(lane: dict[str, Any], wanted: str = "") -> dict[str, Any]:
    """Chat with a model that is loaded already. Never loads one: that could evict another."""
    try:
        states = model_states(request(lane, "GET", "/models"))
        check_key_is_asked_for(lane)
        model = pick_loaded(lane, states)
        if wanted:
            model = wanted if states.get(wanted, ("", False))[0] == "loaded" else ""
        if not model and wanted:
            return {"state": "idle", "reason": f"the router answers, {wanted} is not loaded"}
        return examine(lane, model, PROBE_SECONDS) if model else idle(lane, states)
    except (RouterError, OSError) as error:
        return {"state": "down", "reason": str(error)}


def reload(lane: dict[str, Any], run: str = "/run") -> None:
    """Let the router read its preset file again, and record what it has read. Raises `RouterError`."""
    wait_for_router(lane, START_SECONDS)
    with open(lane["presets"], "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    request(lane, "GET", "/models?reload=1", timeout=120)
    with open(f"{run}/{lane['lane']}/presets.sha256", "w", encoding="ascii") as file:
        file.write(f"{digest}  -\n")


def chat(lane: dict[str, Any], model: str, text: str) -> None:
    """Print one streamed answer and its tokens per second. Raises `RouterError`."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 512,
        "messages": [{"role": "user", "content": text}],
    }
    response = _send(lane, "POST", "/v1/chat/completions", body, LOAD_SECONDS)
    if response.status != 200:
        content = _read(response, time.monotonic() + LOAD_SECONDS)
        raise RouterError(f"answered {response.status}: {_message(content)}")
    speed = None
    for event in _events(response):
        if "error" in event:
            raise RouterError(_message(json.dumps(event).encode()))
        for choice in event.get("choices", []):
            print(choice.get("delta", {}).get("content") or "", end="", flush=True)
        speed = event.get("timings", {}).get("predicted_per_second", speed)
    print(f"\n[{model}: {speed:.1f} tok/s]" if speed else f"\n[{model}]")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The server-sent events of a streamed answer. Raises `RouterError` when it stops before its end."""
    try:
        while line := response.readline(ANSWER_BYTES):
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])
    except (http.client.HTTPException, ValueError, RecursionError):
        pass
    raise RouterError("the answer was cut off")


def main(arguments: list[str]) -> int:
    action = arguments[1] if len(arguments) > 1 else ""
    if action not in ("verify", "probe", "reload", "chat"):
        return _usage()
    try:
        with open(arguments[0], encoding="utf-8") as file:
            lane = json.load(file)
        if action in ("verify", "probe"):
            wanted = "".join(arguments[3:4]) if arguments[2:3] == ["--model"] else ""
            return _report(action, verify(lane) if action == "verify" else probe(lane, wanted))
        if action == "reload":
            reload(lane)
            return 0
        return _chat(lane, arguments[2:])
    except ConnectionRefusedError:
        reason = f"nothing listens on port {lane['port']}: the lane does not run (gb10 status says why)"
    except (RouterError, OSError) as error:
        reason = one_line(str(error))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # A description or an answer in a shape that nobody thought of.
        reason = one_line(f"{type(error).__name__}: {error}")
    if action in ("verify", "probe"):
        return _report(action, {"state": "down", "reason": reason})
    print(f"gb10_router.py {action}: {reason}", file=sys.stderr)
    return 1


def _report(action: str, result: dict[str, Any]) -> int:
    print(json.dumps(result))
    return 0 if result["state"] == "answered" or action == "probe" else 1


def _chat(lane: dict[str, Any], words: list[str]) -> int:
    model = lane["default_model"]
    if words[:1] == ["--model"]:
        model, words = "".join(words[1:2]), words[2:]
    if not model or not words:
        return _usage()
    chat(lane, model, " ".join(words))
    return 0


def _usage() -> int:
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
