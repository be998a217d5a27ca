"""One look of the watch: everything that is read, put together, with no read that could hold it up.

What may hang (the router, Docker, the driver, processes in /proc) runs beside the loop and is asked for its
result. Imported by gb10_watch.py; python3 standard library only.
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
PROC_SECONDS = 1.0  # for what takes milliseconds; then it is not known
HUNG_SECONDS = 10.0  # a probe that has taken so long did not just fail
UNKNOWN_SECONDS = 60.0  # and must not be piled up


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
        self._held: dict[str, tuple[str | None, int]] = {}  # how, and MiB that are swapped out
        self._unseen: dict[str, str] = {}  # what /proc does not show, and why
        self.probe: Probe | None = None
        self._probed = ""  # the container in which it was asked
        self.fully = False  # whether the next probe asks llama.cpp itself
        self.canaries: tuple[str, ...] = ()
        self._late_canaries: dict[str, float] = {}  # that wait for the counters of their look
        self._full = False  # whether the one under way does
        self._due: dict[str, float] = {}
        self._early: float = config["interval_seconds"] / 2  # looks do not come to the microsecond
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
        self._find_children()
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
        if not self._is_due(what, at):
            return False
        self._due[what] = at + seconds
        return True

    def _is_due(self, what: str, at: float) -> bool:
        return at + self._early >= self._due.get(what, 0.0)

    def _in_time(self, what: str, work: Callable[[], Any]) -> Any:
        """What ``work`` reads of processes in /proc, None when it has not come in time.

        The command line and the maps of a process wait for a lock, which a driver that hangs may hold.
        """
        self.jobs.outcome(what)  # of a look before: it is of that time
        outcome = None
        if not self.jobs.running(what):  # or it is not waited for again
            self.jobs.start(what, work)
            outcome = self.jobs.outcome(what, PROC_SECONDS)
        if outcome is not None and outcome.error is None:
            self._unseen.pop(what, None)
            return outcome.value
        fault = "" if outcome is None else router.one_line(str(outcome.error))
        self._unseen[what] = fault or "/proc has not answered in time"
        return None

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
            found = self._in_time(
                "the container", lambda: signals.find_container(self.lane["presets"], self.proc)
            )
            self.container, self.cgroup = found or ("", "")
            # What was seen in another container is nothing, and the new one is looked at now.
            self.probe, self._due["probe"] = None, 0.0
            self._models, self.children = (), {}
        return self.container != before

    def _find_children(self) -> None:
        """Which processes the models have, and whether they hold the accelerator."""
        cgroup, signal = self.cgroup, self.lane["signal"]

        def work() -> dict[str, tuple[int, str | None, int]]:
            children = signals.children_of(cgroup, self.proc, self.sys) if cgroup else {}
            return {
                name: (pid, signals.holder_of(pid, signal, self.proc), signals.swapped_mib(pid, self.proc))
                for name, pid in children.items()
            }

        found = self._in_time("the models' processes", work)
        if found is not None:
            self.children = {name: pid for name, (pid, _, _) in found.items()}
        # Which processes there were is known then, and not what they hold.
        self._held = {name: (holder, swap) for name, (_, holder, swap) in (found or {}).items()}

    def _seen(self, model: Model, at: float) -> Model:
        if self.due("files", at, FILES_SECONDS):
            self._gone = {name: path for name, path in self.config["model_files"].items() if _is_gone(path)}
        model = replace(model, file_gone=self._gone.get(model.name, ""))
        pid = self.children.get(model.name)
        if not model.loaded or pid is None:
            return model
        holder, swap = self._held.get(model.name, (None, 0))
        return replace(model, pid=pid, holder=holder, swap_mib=swap)

    def _probe(self, at: float) -> None:
        # It is quick as a rule; one that takes longer is collected by a later look.
        self._take_probe(at, self.jobs.outcome("probe"))
        if not self.jobs.running("probe") and self._is_due("probe", at):
            self._due["probe asked"], self._full, self._probed = at, self.fully, self.container
            verb = "devices" if self._full else "probe"
            self.jobs.start("probe", lambda: ask_hand(self.config["socket"], verb, 40))
        self._take_probe(at, self.jobs.outcome("probe", PROBE_SECONDS))

    def _take_probe(self, at: float, outcome: Outcome | None) -> None:
        if outcome is None or self._probed != self.container:
            return  # what was said in another container is nothing
        asked = self._due.get("probe asked", at)
        value = outcome.value if outcome.error is None else {}
        answer, text = value.get("answer"), router.one_line(str(value.get("text", "")))
        if answer not in ("yes", "no"):
            answer, text = "unknown", text or router.one_line(str(outcome.error))
        self.probe = Probe(asked, answer, text, self._full)
        # What hangs is left alone for a while; Docker may be away for a moment only.
        hung = answer == "unknown" and at - asked >= HUNG_SECONDS
        self._due["probe"] = asked + (UNKNOWN_SECONDS if hung else self.config["probe"]["seconds"])

    def _all_rivals(self, at: float) -> tuple[str, ...]:
        config = self.config
        if self.due("rivals", at, RIVALS_SECONDS):
            wanted = config["units_out"], config["rivals"], self.cgroup, self.proc, self.sys
            self._rivals = self._in_time("other programs", lambda: signals.rivals(*wanted)) or ()
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
        return {what: why for what, why in found.items() if why} | self._unseen

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
