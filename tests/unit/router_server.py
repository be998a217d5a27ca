"""A server on 127.0.0.1 that answers like llama.cpp's router, from recorded answers, and like worse."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "router"
KEY = "a-key-of-the-tests"
CHATS = "POST /v1/chat/completions"
CHAT = json.loads((GOLDEN / "chat-tiny-a.json").read_text())


def models(name: str) -> dict[str, Any]:
    """A recorded answer of ``/models``."""
    answer: dict[str, Any] = json.loads((GOLDEN / f"router-models-{name}.json").read_text())
    return answer


def states(**loaded: str) -> dict[str, Any]:
    """An answer of ``/models`` in which these models have these states."""
    return {"data": [{"id": name, "status": {"value": state}} for name, state in loaded.items()]}


class Turns:
    """One answer after the other; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)


class Router:
    """``answers`` maps ``GET /models`` and the like to an answer; ``asked`` are the requests,
    ``keyless`` those without any key.

    An answer is JSON, bytes, (status, either of them), `Turns`, or a function that writes to the handler.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keyless: list[tuple[str, dict[str, Any]]] = []
        self.wants_key = True
        self.port = 0

    @property
    def lines(self) -> list[str]:
        return [line for line, _ in self.asked]

    def answer(self, handler: BaseHTTPRequestHandler, line: str) -> None:
        found = self.answers.get(line, (404, {"error": {"code": 404, "message": "File Not Found"}}))
        if isinstance(found, Turns):
            found = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
        if callable(found):
            found(handler)
            return
        if line == CHATS and "choices" in found and self.asked[-1][1].get("stream"):
            stream(*pieces(found["choices"][0]))(handler)
            return
        status, content = found if isinstance(found, tuple) else (200, found)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def running() -> Iterator[Router]:
    """A router on a free port for the time of a with block. Without the key it answers 401, as recorded."""
    router = Router()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            line = f"{self.command} {self.path}"
            given = self.headers.get("Authorization")
            (router.keyless if given is None else router.asked).append((line, body))
            if router.wants_key and given != f"Bearer {KEY}":
                text = (GOLDEN / "api-401.txt").read_text().partition(" HTTP ")[0]
                router.answers["401"] = (401, text.encode())
                line = "401"
            router.answer(self, line)

        do_GET = do_POST = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...  # a client that has gone

    server = Server(("127.0.0.1", 0), Handler)
    router.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield router
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def raw(*pieces: bytes, pause: float = 0.0) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer byte by byte as given, the connection closed behind it."""

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        for piece in pieces:
            try:
                handler.wfile.write(piece)
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(pause)

    return write


def pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A chat's answer as llama.cpp streams it; a call's arguments come in several pieces."""
    message = choice["message"]
    content = message.get("content") or ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    deltas += [{"content": content[at : at + 7]} for at in range(0, len(content), 7)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        middle = len(arguments) // 2
        head = {"name": name, "arguments": arguments[:middle]}
        deltas.append(
            {"tool_calls": [{"index": index, "id": call.get("id"), "type": "function", "function": head}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[middle:]}}]})
    for delta in deltas:
        yield {"choices": [{"index": 0, "finish_reason": None, "delta": delta}]}
    yield {"choices": [{"index": 0, "finish_reason": choice.get("finish_reason") or "stop", "delta": {}}]}


def stream(*events: Any, done: bool = True) -> Callable[[BaseHTTPRequestHandler], None]:
    """Server-sent events in chunks, as llama.cpp sends them."""
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    lines += [b"data: [DONE]\n\n"] if done else []
    chunks = [b"%x\r\n%s\r\n" % (len(line), line) for line in lines]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return raw(head, *chunks, *([b"0\r\n\r\n"] if done else []))
