"""Simulated model servers with llama-server's counters, clients of them, and the watch that looks on.

One step of a server is for all its slots at once: each answer gets its next token, and what of the prompts
fits the batch is read. Counters move as the real ones do (tools/server/server-context.cpp): steps and busy
slots at each step, tokens and seconds of an answer when it ends, its first token without time. They are
printed with six digits and read by the watch's own readers. Times are seconds, a step of a server that is
well takes 25 ms: 40 tokens per second for one client alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gb10_watch_eyes as eyes
import gb10_watch_signals as signals
from gb10_watch_judge import judge
from gb10_watch_state import HEALTHY, History, Model, Observation, Probe, Settings, Verdict

from tests.unit.watching import CONTAINER, INTERVAL, SETTINGS, UNIT

STEP = 0.025
BASELINE = 1 / STEP
NEVER = float("inf")


@dataclass
class Request:
    """Tokens of the prompt to read, of the answer to write, and of the prompt that were cached."""

    prompt: int
    answer: int
    cached: int = 0
    a_step: int = 1  # tokens of the answer for each step: more with a draft
    task: int = 0
    left: int = 0
    written: int = 0
    began: float = 0.0
    last: float = 0.0


class Client:
    """One request after the other: ``make`` gives it, ``pause`` the seconds until the next one."""

    def __init__(
        self,
        make: Callable[[], Request],
        pause: Callable[[], float],
        first: float = 0.0,
        until: float = NEVER,
        period: float = 0.0,
    ) -> None:
        self.make, self.pause, self.at, self.until, self.period = make, pause, first, until, period
        self.request: Request | None = None
        self.began = first

    def next(self, now: float) -> Request | None:
        if self.request is not None or now < self.at or now >= self.until:
            return None
        self.request = self.make()
        return self.request

    def ended(self, now: float) -> None:
        self.request = None
        if self.period:
            now = self.began + self.period * ((now - self.began) // self.period + 1)
        self.at = now + self.pause()

    @property
    def arrives(self) -> float:
        return self.at if self.request is None and self.at < self.until else NEVER


class Server:
    """``slow`` stretches every step, ``reads`` is tokens per second of a prompt."""

    def __init__(self, name: str, slow: float = 1.0, reads: float = 1500.0, slots: int = 8) -> None:
        self.name, self.slow, self.reads, self.slots = name, slow, reads, slots
        self.clients: list[Client] = []
        self.at = self.began = 0.0  # its own clock, and since when it works without a pause
        self.working: list[Request] = []
        self.waiting: list[Request] = []
        self.owner: dict[int, Client] = {}
        self.tasks = 0
        self.tokens, self.seconds, self.steps, self.busy, self.prompts = 0.0, 0.0, 0.0, 0.0, 0.0
        self.reading = 0.0
        self.bucket = (0.0, 0.0)  # steps and seconds of answers since the rate was last asked for

    def admit(self) -> None:
        for client in self.clients:
            request = client.next(self.at)
            if request is not None:
                self.tasks += 1
                request.task, request.left = self.tasks, request.prompt
                self.owner[request.task] = client
                self.waiting.append(request)
        if self.waiting and not self.working:
            self.began = self.at
        while self.waiting and len(self.working) < self.slots:
            self.working.append(self.waiting.pop(0))
            self.prompts += self.working[-1].cached

    def step_seconds(self) -> float:
        """Seconds of a step for one client, without prompts."""
        return STEP

    def step(self, beside: float) -> None:
        writing = [request for request in self.working if request.written]
        room, read, done = 2048 - len(writing), 0, []
        for request in self.working:
            part = min(request.left, room)
            request.left, room, read = request.left - part, room - part, read + part
            if part and not request.left:
                done.append(request)
        more = 1 + 0.05 * max(0, len(writing) - 1)
        took = (self.step_seconds() * more + read / self.reads) * self.slow * beside
        self.at += took
        self.reading += took if read else 0.0
        self.steps += 1
        self.busy += len(self.working)
        self.prompts += read
        for request in writing:
            request.written, request.last = min(request.answer, request.written + request.a_step), self.at
        for request in done:
            request.written, request.began, request.last = min(1, request.answer), self.at, self.at + 1e-6
        for request in [r for r in self.working if not r.left and r.written >= r.answer]:
            self._end(request)

    def _end(self, request: Request) -> None:
        self.working.remove(request)
        if request.written:
            took = request.last - request.began
            self.tokens, self.seconds = self.tokens + request.written, self.seconds + took
            self.bucket = (self.bucket[0] + request.written - 1, self.bucket[1] + took)
        self.owner.pop(request.task).ended(self.at)

    def metrics(self) -> str:
        steps, seconds = self.bucket
        self.bucket = (0.0, 0.0)
        figures = {
            signals.TOKENS: self.tokens,
            signals.SECONDS: self.seconds,
            signals.PROCESSING: len(self.working),
            signals.DEFERRED: len(self.waiting),
            signals.DECODES: self.steps,
            signals.BUSY: self.busy / max(1.0, self.steps),
            signals.PROMPTS: self.prompts,
            signals.READING: self.reading,
            signals.RATE: steps / seconds if seconds else 0.0,
        }
        return "".join(f"{name} {value:.6g}\n" for name, value in figures.items())

    def slots_document(self) -> list[dict[str, Any]]:
        return [
            {
                "is_processing": True,
                "id_task": request.task,
                "n_prompt_tokens": request.cached + request.prompt - request.left + request.written,
                "next_token": [{"n_decoded": request.written}],
            }
            for request in self.working
        ]


class Canary(Client):
    """Asked by the watch, once each time."""

    def __init__(self, told: Callable[[str, float], None], name: str) -> None:
        super().__init__(lambda: Request(8, SETTINGS.minimum_tokens), lambda: 0.0, first=NEVER)
        self.told, self.name = told, name

    def ended(self, now: float) -> None:
        assert self.request is not None
        request, self.request, self.at = self.request, None, NEVER
        self.told(self.name, (request.written - 1) / (request.last - request.began))


class Lane:
    """The servers share one accelerator: beside another one that works, each step takes ``share`` as long."""

    def __init__(self, *servers: Server, share: float = 2.0, baseline: float = BASELINE) -> None:
        self.servers, self.share = servers, share
        self.settings: Settings = replace(SETTINGS, baselines={server.name: baseline for server in servers})
        self.history, self.at, self.state = History(), 0.0, HEALTHY
        self.changes: list[tuple[float, str]] = []
        self.refusing: frozenset[str] = frozenset()  # servers that answer no canary: for embeddings
        self._skip: dict[str, float] = {}
        self._order: list[str] = []
        self._asking: frozenset[str] = frozenset()
        self._figures: dict[str, float] = {}
        self._canaries = {server.name: Canary(self._told, server.name) for server in servers}
        for server in servers:
            server.clients.append(self._canaries[server.name])

    def run(self, seconds: float) -> Lane:
        for _ in range(int(seconds / INTERVAL)):
            self.look()
        return self

    def look(self) -> Verdict:
        self.at += INTERVAL
        self._work_until(self.at)
        asking = self._asking if self._order else frozenset()
        canaries: Mapping[str, float] = {}
        if self._asking and not asking:
            canaries, self._asking, self._figures = self._figures, frozenset(), {}
        now = Observation(
            at=self.at,
            unit=UNIT,
            container=CONTAINER,
            models=self.models(),
            available_mib=20_000,
            pressure_percent=0.0,
            probe=Probe(self.at, "yes", "GPU 0"),
            canaries=canaries,
            asking=asking,
        )
        verdict = judge(self.history, now, self.settings)
        self.history = verdict.history
        if verdict.canaries:
            self._asking, self._order = frozenset(verdict.canaries), list(verdict.canaries)
            self._ask()
        if verdict.state != self.state:
            self.state = verdict.state
            self.changes.append((self.at, verdict.state))
        return verdict

    def _work_until(self, at: float) -> None:
        while True:
            behind = []
            for server in self.servers:
                server.admit()
                if not server.working:
                    arrives = min(client.arrives for client in server.clients)
                    server.at = max(server.at, min(arrives, at))
                    server.admit()
                if server.at < at and server.working:
                    behind.append(server)
            if not behind:
                return
            server = min(behind, key=lambda one: one.at)
            others = any(one.working and one.began <= server.at for one in self.servers if one is not server)
            server.step(self.share if others else 1.0)

    def models(self) -> tuple[Model, ...]:
        models = []
        for server in self.servers:
            model = Model(server.name, "loaded", pid=77, holder="process 77 has it mapped")
            if self.at >= self._skip.get(server.name, 0.0):
                # It answers once its step is over.
                if server.at - self.at < signals.ALL_SECONDS:
                    model = signals.with_figures(model, signals.read_metrics(server.metrics()))
                    model = replace(model, read=self.at)
                else:
                    self._skip[server.name] = self.at + eyes.SKIP_SECONDS
            models.append(model)
        if sum(model.requests or 0 for model in models) == 1:
            models = [
                replace(model, answer=signals.read_answer(slots), depth=signals.read_depth(slots))
                if model.requests
                else model
                for model, slots in zip(models, [s.slots_document() for s in self.servers], strict=True)
            ]
        return tuple(models)

    def _ask(self) -> None:
        while self._order and self._order[0] in self.refusing:
            self._order.pop(0)
        if self._order:
            self._canaries[self._order[0]].at = max(server.at for server in self.servers)

    def _told(self, name: str, speed: float) -> None:
        self._figures[name] = speed
        self._order.remove(name)
        self._ask()
