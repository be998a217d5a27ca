"""What the watch tells: status.json, figures for Prometheus, the record of its actions, notifications.

Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gb10_router as router
from gb10_watch_state import DEGRADED, FAILED, HEALTHY, Observation, Verdict

NOTIFY_SECONDS = 20
MOST_WAITING = 20  # notifications
MOST_ACTIONS = 1000  # lines in the record before the older half goes
SHOWN_ACTIONS = 5
LEVELS = {HEALTHY: 5, DEGRADED: 4, FAILED: 3}  # of the journal


def clock_text() -> str:
    """Now, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def say(level: int, text: str) -> None:
    """One line in the journal, whatever is in it."""
    print(f"<{level}>{''.join(c if c.isprintable() else ' ' for c in text)}", flush=True)


def write_file(path: str, text: str) -> None:
    """The whole file at once, or the old one stays."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def brief(now: Observation, verdict: Verdict) -> dict[str, Any]:
    """The lane in few words, for the record of an action."""
    speeds = verdict.history.speeds
    return {
        "state": verdict.state,
        "reasons": [reason.text for reason in verdict.reasons],
        "unit": now.unit.active,
        "container": now.container[:12],
        "available_mib": now.available_mib,
        "models": {
            model.name: _rounded(speeds[model.name].figure) if model.name in speeds else None
            for model in now.models
            if model.loaded
        },
    }


def document(
    now: Observation,
    verdict: Verdict,
    config: Mapping[str, Any],
    memory: Mapping[str, int | None],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """status.json. Memory in MiB, speed in tokens per second, ages in seconds."""
    history, baselines = verdict.history, config["settings"]["baselines"]
    raised = history.raised
    return {
        "version": 1,
        "at": clock_text(),
        "state": verdict.state,
        "reasons": [
            {
                "key": reason.key,
                "state": reason.state,
                "text": reason.text,
                "seconds": round(now.at - raised[reason.key].since) if reason.key in raised else 0,
            }
            for reason in verdict.reasons
        ],
        "unit": {
            "active": now.unit.active,
            "restarts": now.unit.restarts,
            "up_seconds": round(now.at - now.unit.since) if now.unit.active == "active" else None,
            "container": now.container[:12],
        },
        "router": now.router_fault or now.refusal or "answers",
        "models": [
            {
                "name": model.name,
                "state": model.state,
                "failed": model.failed,
                "process": model.pid,
                "holds": model.holder,
                "requests": model.requests,
                "tokens_per_second": _rounded(history.speeds[model.name].figure)
                if model.name in history.speeds
                else None,
                "baseline": baselines.get(model.name),
                "baseline_stale": now.stale.get(model.name, ""),
            }
            for model in now.models
        ],
        "memory": {
            **memory,
            "reserve": config["settings"]["reserve_mib"],
            "pressure_percent": now.pressure_percent,
        },
        "probe": None if now.probe is None else {"answer": now.probe.answer, "text": now.probe.text},
        "restarts_by_watch": len(history.attempts),
        **extra,
    }


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 1)


def prometheus(
    now: Observation, verdict: Verdict, config: Mapping[str, Any], counts: Mapping[str, int]
) -> str:
    """Figures in Prometheus' text format: base units, ``_total`` for what only grows."""
    baselines = config["settings"]["baselines"]
    lines: list[str] = []

    def family(name: str, kind: str, text: str, *samples: tuple[str, float | None]) -> None:
        # Two names may look alike: Prometheus takes no file with a figure twice.
        known = {labels: value for labels, value in samples if value is not None}
        if known:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{labels} {value:.10g}" for labels, value in known.items())

    def label(key: str, value: str) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{{{key}="{escaped}"}}'

    def each(value: Any) -> list[tuple[str, float | None]]:
        return [(label("model", model.name), value(model)) for model in now.models if model.loaded]

    speeds = verdict.history.speeds
    states = [(label("state", one), float(one == verdict.state)) for one in (HEALTHY, DEGRADED, FAILED)]
    family("gb10_lane_state", "gauge", "1 for the state that the lane is in.", *states)
    family("gb10_lane_up", "gauge", "1 while the unit is active.", ("", float(now.unit.active == "active")))
    family("gb10_router_up", "gauge", "1 while the router answers.", ("", float(not now.router_fault)))
    family(
        "gb10_accelerator_reachable",
        "gauge",
        "1 when a new process in the container gets the accelerator.",
        ("", None if now.probe is None or now.probe.answer == "unknown" else now.probe.answer == "yes"),
    )
    family(
        "gb10_model_accelerated",
        "gauge",
        "1 when the process of a loaded model holds the accelerator.",
        *each(lambda model: None if model.holder is None else float(bool(model.holder))),
    )
    family(
        "gb10_model_tokens_per_second",
        "gauge",
        "Last measured generation speed of a loaded model.",
        *each(lambda model: speeds[model.name].figure if model.name in speeds else None),
    )
    family(
        "gb10_model_baseline_tokens_per_second",
        "gauge",
        "What the model made when it was measured.",
        *each(lambda model: baselines.get(model.name)),
    )
    family(
        "gb10_model_requests",
        "gauge",
        "Requests that a loaded model works on or holds back.",
        *each(lambda model: model.requests),
    )
    mib = 1024.0 * 1024.0
    available = None if now.available_mib is None else now.available_mib * mib
    family("gb10_memory_available_bytes", "gauge", "MemAvailable of the box.", ("", available))
    reserve = config["settings"]["reserve_mib"] * mib
    family("gb10_memory_reserve_bytes", "gauge", "Below this a model is unloaded.", ("", reserve))
    actions = [(label("action", name), float(count)) for name, count in sorted(counts.items())]
    family("gb10_watch_actions_total", "counter", "Actions since the watch has started.", *actions)
    restarts = float(now.unit.restarts)
    family("gb10_lane_crash_restarts", "gauge", "Restarts by systemd since the last start.", ("", restarts))
    stamp = time.time()
    family("gb10_watch_last_look_timestamp_seconds", "gauge", "When the watch last looked.", ("", stamp))
    return "\n".join(lines) + "\n"


class Record:
    """actions.jsonl: one line when an action begins and one when its outcome is known."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._last = deque(self._entries(), SHOWN_ACTIONS)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write it down. A disk that is full keeps nobody from acting."""
        dated = {"at": clock_text(), **entry}
        self._last.append(dated)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(dated) + "\n")
            lines = self._lines()
            if len(lines) > MOST_ACTIONS:
                write_file(self.path, "".join(lines[len(lines) // 2 :]))
        except OSError as error:
            say(4, f"{self.path} cannot be written: {error.strerror}")

    def last(self) -> list[dict[str, Any]]:
        """The last entries, the newest last."""
        return list(self._last)

    def _entries(self) -> Iterator[dict[str, Any]]:
        for line in self._lines()[-SHOWN_ACTIONS:]:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off by a power cut
            if isinstance(entry, dict):
                yield entry

    def _lines(self) -> list[str]:
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                return file.readlines()
        except OSError:
            return []


class Notifier:
    """Tells a command and a webhook, beside the loop. What they do or fail to do never holds it up.

    ``url_file`` holds the webhook's URL, which is a secret: it gets into no line of the journal.
    """

    def __init__(self, command: list[str], url_file: str | None) -> None:
        self.command, self.url_file = command, url_file
        self._waiting: list[queue.Queue[dict[str, Any]]] = []
        if command:
            self._begin("command", self._by_command)
        if url_file:
            self._begin("webhook", self._by_webhook)

    def _begin(self, what: str, send: Callable[[str], None]) -> None:
        """Each by itself: one that hangs does not hold the other up."""
        waiting: queue.Queue[dict[str, Any]] = queue.Queue(MOST_WAITING)
        self._waiting.append(waiting)
        name, work = f"notify by {what}", (what, send, waiting)
        threading.Thread(target=self._run, name=name, args=work, daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Have ``message`` sent; one that finds no room is dropped and said so."""
        for waiting in self._waiting:
            try:
                waiting.put_nowait(message)
            except queue.Full:
                say(4, "a notification was dropped: those before it are still waiting")

    def _run(self, what: str, send: Callable[[str], None], waiting: queue.Queue[dict[str, Any]]) -> None:
        while True:
            message = json.dumps(waiting.get())
            try:
                send(message)
            except Exception as error:
                # Its text could name the URL.
                say(4, f"the notification by {what} has failed ({type(error).__name__})")

    def _by_command(self, text: str) -> None:
        with subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.communicate(text.encode(), NOTIFY_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, self.command)

    def _by_webhook(self, text: str) -> None:
        deadline = time.monotonic() + NOTIFY_SECONDS
        with open(str(self.url_file), encoding="utf-8") as file:
            url = urllib.parse.urlsplit(file.read(4096).strip())
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(url.netloc, timeout=NOTIFY_SECONDS, context=context)
        elif url.scheme == "http":
            connection = http.client.HTTPConnection(url.netloc, timeout=NOTIFY_SECONDS)
        else:
            raise ValueError("no http or https URL")
        router.end_by(connection, deadline)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", path, text.encode(), {"Content-Type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        if status >= 300:
            print(f"<4>the webhook answered {status}", file=sys.stdout, flush=True)
