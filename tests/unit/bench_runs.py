"""For the tests of the bench: a stub router that completes, a box without a host, results."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

from gb10.bench.result import Device, Figure, Llama, ModelResult, Rate, Result, Speed, Verdict
from gb10.bench.router import Router
from gb10.bench.run import Bench, Options
from gb10.bench.sandbox import Job
from gb10.slots import Slots
from tests.unit import router_server

START = datetime(2027, 1, 31, 10, 0, tzinfo=UTC)
OPTIONS = Options(runs=3, prompt=32, answer=8, long=200, clients=(1, 4), tasks=2)


def figure(median: float, spread: float = 0.0) -> Figure:
    return Figure(median=median, spread=spread, runs=[median - spread, median, median + spread])


def model(generation: float = 50.0, spread: float = 1.0, **more: Any) -> ModelResult:
    speed = Speed(
        prompt=figure(900, 20), generation=figure(generation, spread), prompt_tokens=512, tokens=128
    )
    found = {"speed": speed, "device": Device(state="answered", name="CUDA0"), **more}
    return ModelResult(**found)


def result(day: int = 0, host: str = "spark.local", **more: Any) -> Result:
    return Result(
        host=host, started=START + timedelta(days=day), llama=Llama(ref="b1", commit="c" * 40), **more
    )


def rate(passed: int, of: int = 10) -> Rate:
    return Rate.of_tasks(
        {f"task-{n}": Verdict(passed=n < passed, why="" if n < passed else "no") for n in range(of)}
    )


def wire(server: router_server.Router) -> Callable[[float], socket.socket]:
    """Opens connections to a stub router."""

    def connect(timeout: float) -> socket.socket:
        try:
            return socket.create_connection(("127.0.0.1", server.port), timeout)
        except OSError:
            raise ConnectionError("nothing listens") from None

    return connect


def connected(server: router_server.Router, key: str = router_server.KEY) -> Router:
    """The bench's own client of a stub router."""
    return Router(wire(server), key)


class Models:
    """A stub router's models: they load and unload as asked. ``broken`` ones do not.

    ``left``: how many more looks a loading model needs. ``most``: how many can be loaded; the first goes.
    ``cut_off``: models that were unloaded while they loaded.
    """

    def __init__(self, server: router_server.Router, *names: str) -> None:
        self.states = dict.fromkeys(names, "unloaded")
        self.broken: set[str] = set()
        self.left: dict[str, int] = {}
        self.most = 99
        self.cut_off: list[str] = []
        self.speeds = [50.0]
        self.worked = dict.fromkeys(names, 0)  # tokens, of whomever
        self.server = server
        server.answers["GET /models"] = self.list
        server.answers["POST /models/load"] = self.change("loaded")
        server.answers["POST /models/unload"] = self.change("unloaded")
        server.answers["POST /tokenize"] = {"tokens": list(range(1, 400))}
        server.answers["POST /completion"] = self.complete
        for name in names:
            server.answers[f"GET /slots?model={name}&autoload=false"] = []
            server.answers[f"GET /metrics?model={name}&autoload=false"] = self.metrics(name)

    @property
    def loaded(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "loaded"]

    def list(self, handler: BaseHTTPRequestHandler) -> None:
        for name in self.left:
            self.left[name] -= 1
            if self.left[name] == 0 and self.states[name] == "loading":
                self.states[name] = "loaded"
        data = [
            {
                "id": name,
                "status": {
                    "value": state,
                    **({"failed": True, "exit_code": 1} if name in self.broken else {}),
                },
            }
            for name, state in self.states.items()
        ]
        _write(handler, {"data": data})

    def change(self, state: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            name = self.server.asked[-1][1]["model"]
            if name not in self.broken:
                if self.states[name] == "loading":
                    self.cut_off.append(name)
                if state == "loaded" and len(self.loaded) >= self.most:
                    self.states[self.loaded[0]] = "unloaded"
                self.states[name] = state
            _write(handler, {"success": True})

        return answer

    def metrics(self, name: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            prompt = self.worked[name] // 2
            lines = [
                f"llamacpp:prompt_tokens_total {prompt:g}",
                "llamacpp:prompt_seconds_total 1",
                f"llamacpp:tokens_predicted_total {self.worked[name] - prompt:g}",
            ]
            _write(handler, "\n".join(lines).encode())

        return answer

    def complete(self, handler: BaseHTTPRequestHandler) -> None:
        body = self.server.asked[-1][1]
        self.worked[body["model"]] += len(body["prompt"]) + body["n_predict"]
        speed = self.speeds.pop(0) if len(self.speeds) > 1 else self.speeds[0]
        timings = {
            "prompt_n": len(body["prompt"]),
            "predicted_n": body["n_predict"],
            "prompt_per_second": 1000.0,
            "predicted_per_second": speed,
        }
        events = [{"content": "a", "stop": False}, {"content": "", "stop": True, "timings": timings}]
        router_server.stream(*events)(handler)


def _write(handler: BaseHTTPRequestHandler, content: Any) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class Quiet:
    """Progress that is kept for the test."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def part(self, model: str, part: str) -> None:
        self.parts.append((model, part))

    def step(self, text: str) -> None: ...

    def line(self, text: str) -> None:
        self.lines.append(text)


class Held:
    """Presets that are only remembered."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.asked: list[dict[str, str | None]] = []
        self.now: dict[str, str | None] = {}

    def text(self) -> str:
        return ""

    @contextmanager
    def held(self, model: str, keys: Mapping[str, str | None]) -> Iterator[Slots]:
        self.asked.append(dict(keys))
        self.now = dict(keys)
        try:
            yield replace(self.slots, unified=keys.get("kv-unified") != "false")
        finally:
            self.now = {}


def bench(server: router_server.Router, **more: Any) -> Bench:
    """A bench of a stub router; 4 slots in a pool of 4096 cells."""
    slots = Slots(4096, 4, unified=True)

    def judge(job: Job) -> Verdict:
        return Verdict(passed="right" in job.code, why="" if "right" in job.code else "wrong")

    usual: dict[str, Any] = {
        "router": connected(server),
        "presets": Held(slots),
        "slots": lambda model: (slots, 0),
        "free_mib": iter([9000, 8000] * 99).__next__,
        "judge": judge,
        "device": lambda model: Device(state="answered", name="CUDA0"),
        "show": Quiet(),
        "options": OPTIONS,
    }
    return Bench(**usual | more)
