"""One look of the watch: everything that is read, put together, with no read that could hold it up.

What may hang (the router, Docker, the driver) runs beside the loop and is asked for its result. Imported by
gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gb10_router as router
import gb10_watch_kernel as kernel
import gb10_watch_signals as signals
from gb10_watch_state import Done, Model, Observation, Probe

WAIT_SECONDS = 4.0  # for the router; then the look goes on with what is known
ROUTER_SECONDS = 9.0  # without an answer: then it is silent
PROBE_SECONDS = 2.5  # the same for the probe
RIVALS_SECONDS = 15.0
FILES_SECONDS = 15.0
SKIP_SECONDS = 8.0  # a model that has given no figures in time is left alone for so long
UNKNOWN_SECONDS = 60.0  # a probe that hangs must not be piled up


@dataclass(frozen=True)
class Outcome:
    """What a job came to: a value, or an error."""

    value: Any = None
    error: BaseException | None = None


class Jobs:
    """Work beside the loop, one thread for each name at a time."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._outcomes: dict[str, Outcome] = {}

    def running(self, name: str) -> bool:
        thread = self._threads.get(name)
        return thread is not None and thread.is_alive()

    def pending(self, name: str) -> bool:
        """True from its start until its outcome has been taken."""
        return name in self._threads

    def start(self, name: str, work: Callable[[], Any]) -> None:
        """Begin ``work``; nothing while the last one of that name is at it."""
        if self.running(name):
            return

        def run() -> None:
            try:
                self._outcomes[name] = Outcome(work())
            except Exception as error:  # whatever it is, it is the loop's to tell
                self._outcomes[name] = Outcome(error=error)

        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    def outcome(self, name: str, wait: float = 0.0) -> Outcome | None:
        """The outcome, once; None while there is none, after at most ``wait`` seconds."""
        thread = self._threads.get(name)
        if thread is None:
            return None
        thread.join(wait)
        if thread.is_alive():
            return None
        del self._threads[name]
        return self._outcomes.pop(name, None)


def ask_hand(path: str, verb: str, timeout: float) -> dict[str, Any]:
    """What gb10_watch_hand.py answers to ``verb``. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(f"{verb}\n".encode())
        content = b""
        while chunk := connection.recv(65536):
            content += chunk
            if len(content) > 1 << 20:
                raise ValueError("the answer has no end")
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    return answer


class Eyes:
    """``config`` is watch.json, ``lane`` is lane.json. Times are of ``time.monotonic``."""

    def __init__(
        self,
        config: Mapping[str, Any],
        lane: dict[str, Any],
        proc: str = "/proc",
        sys: str = "/sys",
        run: str = "/run",
    ) -> None:
        self.config, self.lane, self.proc, self.sys, self.run = config, lane, proc, sys, run
        self.jobs = Jobs()
        self.kernel = kernel.KernelLog(config["kernel_log"])
        self.container, self.cgroup = "", ""
        self.children: dict[str, int] = {}
        self.probe: Probe | None = None
        self.fully = False  # whether the next probe asks llama.cpp itself
        self.canaries: tuple[str, ...] = ()
        self._late_canaries: dict[str, float] = {}  # that wait for the counters of their look
        self._full = False  # whether the one under way does
        self._due: dict[str, float] = {}
        self._skip: dict[str, float] = {}
        self._rivals: tuple[str, ...] = ()
        self._users: dict[int, str] = {}
        self._users_fault = ""  # why it is not known who uses the accelerator
        self._gone: dict[str, str] = {}
        self._stale: dict[str, str] = {}
        self._asked = 0.0  # when the router was
        self._models: tuple[Model, ...] = ()  # what it last said, without figures

    def look(self, at: float) -> Observation:
        """One observation at the time ``at``."""
        # Before the unit is read: its state is then one of after the action.
        done = self._done()
        unit = signals.unit_of(f"{self.lane['lane']}.service")
        # Before the counters are read: what a canary has made is then in them.
        canaries = self._canaries()
        asking = frozenset(self.canaries) if self.jobs.pending("canary") else frozenset()
        models, fault, refusal = self._router(at) if unit.active == "active" else ((), "", "")
        if any(model.loaded and model.tokens is None for model in models if model.name in canaries):
            # A canary without the counters that it has moved would be somebody's use: the next look has them.
            self._late_canaries, asking, canaries = canaries, frozenset(self.canaries), {}
        if self._find_container():
            # Looking for it took a while: the start of the unit that it belongs to.
            unit = signals.unit_of(f"{self.lane['lane']}.service")
        before = dict(self.children)
        self.children = signals.children_of(self.cgroup, self.proc, self.sys) if self.cgroup else {}
        # Until its outcome is told, too.
        busy = self.jobs.pending("action")
        if unit.active == "active" and self.container and not busy:
            self._probe(at)
        # A child that was killed has gone: its name is known from the look before.
        events = kernel.kernel_events(self.kernel.lines(), {**before, **self.children})
        return Observation(
            at=at,
            unit=unit,
            container=self.container,
            router_fault=fault,
            refusal=refusal,
            models=tuple(self._seen(model, at) for model in models),
            available_mib=kernel.memory(self.proc)["available"],
            pressure_percent=kernel.pressure_percent(self.proc),
            events=events,
            rivals=self._all_rivals(at),
            probe=self.probe,
            canaries=canaries,
            asking=asking,
            waiting=unit.active == "active" and self.jobs.pending("router"),
            busy=busy,
            done=done,
            blind=self._blind(),
            stale=self._stale_baselines(at),
        )

    def due(self, what: str, at: float, seconds: float) -> bool:
        """True when ``what`` was last done ``seconds`` ago, and then it counts as done."""
        if at < self._due.get(what, 0.0):
            return False
        self._due[what] = at + seconds
        return True

    def ask_canaries(self, names: tuple[str, ...]) -> None:
        """Have these models asked, one after the other."""
        tokens = self.config["canary_tokens"]

        def work() -> dict[str, float]:
            speeds = {}
            for name in names:
                with contextlib.suppress(router.RouterError, OSError):
                    speeds[name] = signals.canary(self.lane, name, tokens)
            return speeds

        self.canaries = names
        self.jobs.start("canary", work)

    def _router(self, at: float) -> tuple[tuple[Model, ...], str, str]:
        late = self.jobs.outcome("router")
        if late is not None:
            # It came too late for its look: a fault is told now, and its figures are of another time.
            told = self._told(late, self._asked)
            if late.error is not None:
                return told
        self._skip = {name: until for name, until in self._skip.items() if at < until}
        skip = frozenset(self._skip)
        if not self.jobs.running("router"):
            self._asked = at
            self.jobs.start("router", lambda: signals.router_models(self.lane, skip))
        outcome = self.jobs.outcome("router", WAIT_SECONDS)
        if outcome is None:
            waited = at - self._asked + WAIT_SECONDS
            if waited < ROUTER_SECONDS:
                return self._models, "", ""
            return (), f"nothing in {waited:.0f} s", ""
        return self._told(outcome, at)

    def _told(self, outcome: Outcome, at: float) -> tuple[tuple[Model, ...], str, str]:
        """What the router said that was asked at ``at``."""
        if isinstance(outcome.error, (ConnectionError, TimeoutError)):
            return (), router.one_line(str(outcome.error)), ""
        if outcome.error is not None:
            return (), "", router.one_line(f"{outcome.error}")
        models: tuple[Model, ...] = outcome.value
        self._models = tuple(Model(model.name, model.state, model.failed) for model in models)
        for model in models:
            if model.loaded and model.tokens is None and model.name not in self._skip:
                self._skip[model.name] = at + SKIP_SECONDS
        return models, "", ""

    def _find_container(self) -> bool:
        """True when another one was found, or none any more."""
        before = self.container
        if not signals.container_alive(self.cgroup, self.sys):
            self.container, self.cgroup = signals.find_container(self.lane["presets"], self.proc)
            # What was seen in another container is nothing, and the new one is looked at now.
            self.probe, self._due["probe"] = None, 0.0
            self._models = ()
        return self.container != before

    def _seen(self, model: Model, at: float) -> Model:
        if self.due("files", at, FILES_SECONDS):
            self._gone = {name: path for name, path in self.config["model_files"].items() if _is_gone(path)}
        model = replace(model, file_gone=self._gone.get(model.name, ""))
        pid = self.children.get(model.name)
        if not model.loaded or pid is None:
            return model
        holder = signals.holder_of(pid, self.lane["signal"], self.proc)
        return replace(model, pid=pid, holder=holder, swap_mib=signals.swapped_mib(pid, self.proc))

    def _probe(self, at: float) -> None:
        if not self.jobs.running("probe") and at >= self._due.get("probe", 0.0):
            self._due["probe asked"], self._full = at, self.fully
            verb = "devices" if self._full else "probe"
            self.jobs.start("probe", lambda: ask_hand(self.config["socket"], verb, 40))
        # It is quick as a rule; one that takes longer is collected by a later look.
        outcome = self.jobs.outcome("probe", PROBE_SECONDS)
        if outcome is not None:
            asked = self._due.get("probe asked", at)
            value = outcome.value if outcome.error is None else {}
            answer, text = value.get("answer"), router.one_line(str(value.get("text", "")))
            if answer not in ("yes", "no"):
                answer, text = "unknown", text or router.one_line(str(outcome.error))
            self.probe = Probe(asked, answer, text, self._full)
            # What hangs is left alone for a while.
            pause = UNKNOWN_SECONDS if answer == "unknown" else self.config["probe"]["seconds"]
            self._due["probe"] = asked + pause

    def _all_rivals(self, at: float) -> tuple[str, ...]:
        config = self.config
        if self.due("rivals", at, RIVALS_SECONDS):
            self._rivals = signals.rivals(
                config["units_out"], config["rivals"], self.cgroup, self.proc, self.sys
            )
        if config["processes"]["command"]:
            outcome = self.jobs.outcome("processes")
            if outcome is not None:
                self._take_users(outcome)
            if not self.jobs.running("action") and self.due("processes", at, config["processes"]["seconds"]):
                self.jobs.start("processes", lambda: ask_hand(config["socket"], "processes", 30))
        return (*self._rivals, *signals.accelerator_rivals(self._users, self.cgroup, self.proc))

    def _take_users(self, outcome: Outcome) -> None:
        value = outcome.value if outcome.error is None else {}
        text = str(value.get("text", ""))
        if value.get("answer") == "yes":
            self._users_fault = ""
            self._users = signals.accelerator_users(text, self.config["processes"]["allowed"])
        else:
            self._users_fault = router.one_line(text or str(outcome.error or "no answer"))

    def _blind(self) -> dict[str, str]:
        found = {"the kernel's log": self.kernel.fault, "who is on the GPU": self._users_fault}
        return {what: why for what, why in found.items() if why}

    def _stale_baselines(self, at: float) -> dict[str, str]:
        if self.due("stale", at, FILES_SECONDS):
            self._stale = signals.stale_baselines(self.config["measured"], self.lane, self.run)
        return self._stale

    def _canaries(self) -> dict[str, float]:
        late, self._late_canaries = self._late_canaries, {}
        outcome = self.jobs.outcome("canary")
        return late if outcome is None or outcome.error is not None else dict(outcome.value)

    def _done(self) -> tuple[Done, ...]:
        outcome = self.jobs.outcome("action")
        if outcome is None:
            return ()
        # What was seen before an action is not true after it.
        self.probe, self._due["probe"] = None, 0.0
        if isinstance(outcome.value, Done):
            return (outcome.value,)
        return (Done("action", "", router.one_line(str(outcome.error))),)


def _is_gone(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # not ours to see
    return False
