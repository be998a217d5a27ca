#!/usr/bin/env python3
"""The watch over the lane: it sees a lost accelerator and a slow model, acts once, and says so.

Usage: gb10_watch.py WATCH.json       run by gb10-watch.service (Type=notify)

Every few seconds it looks (gb10_watch_eyes.py), judges (gb10_watch_judge.py), acts and tells
(gb10_watch_report.py). It runs as the model servers' own user with no right beyond that; what needs root is
asked of gb10_watch_hand.py. It writes into its own two folders only: status.json and gb10.prom for whoever
wants to know, state.json for itself, actions.jsonl as a record.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import gb10_router as router
import gb10_watch_kernel as kernel
import gb10_watch_signals as signals
from gb10_watch_eyes import Eyes, ask_hand
from gb10_watch_judge import judge
from gb10_watch_memory import Told, remembered, to_remember
from gb10_watch_report import (
    LEVELS,
    Notifier,
    Record,
    brief,
    clock_text,
    document,
    prometheus,
    say,
    write_file,
)
from gb10_watch_state import (
    HEALTHY,
    Action,
    Done,
    Observation,
    Settings,
    Unit,
    Verdict,
)

ACTION_SECONDS = 320.0  # a router that waits for a request, its stop and its start
UNLOAD_SECONDS = 30.0


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The judge's settings out of watch.json."""
    values = dict(config["settings"])
    return Settings(**{**values, "actions": frozenset(values["actions"])})


def systemd(text: str) -> None:
    """Tell systemd, where it wants to be told."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(
                text.encode(errors="replace"), "\0" + path[1:] if path.startswith("@") else path
            )
    except OSError:
        pass


class Watch:
    """``look`` is one round; everything that it remembers is in `history`."""

    def __init__(
        self, config: dict[str, Any], lane: dict[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config, self.lane, self.clock = config, lane, clock
        self.settings = settings_of(config)
        self.eyes = Eyes(config, lane)
        self.record = Record(f"{config['folder']}/actions.jsonl")
        self.notifier = Notifier(config["notify_command"], config["webhook_file"])
        self.state_file = f"{config['run']}/state.json"
        self.history, told = remembered(self.state_file)
        # What has been told already is not told again.
        self.state, self.since, self.keys = told or Told(HEALTHY, clock_text(), frozenset())
        self.counts = {"restart": 0, "stop": 0, "unload": 0}
        self.stale: frozenset[str] = frozenset()
        self.looks, self.began = 0, clock_text()
        self._kept = ""
        self._unwritten: set[str] = set()  # files, as far as they could not be written

    def look(self) -> Verdict:
        """Look, judge, act, tell."""
        now = self.eyes.look(self.clock())
        verdict = judge(self.history, now, self.settings)
        self.history = verdict.history
        for done in now.done:
            self._ended(done, now, verdict)
        if verdict.recovered:
            self._outcome("restart", "", verdict.recovered, now, verdict)
        if verdict.actions:
            self._remember(verdict)  # before: a watch that dies over it has counted it
        for action in verdict.actions:
            self._begin(action, now, verdict)
        if verdict.canaries:
            self.eyes.ask_canaries(verdict.canaries)
        self.eyes.fully = verdict.ask_fully
        self._tell(now, verdict)
        return verdict

    def _begin(self, action: Action, now: Observation, verdict: Verdict) -> None:
        say(4, f"{action.kind} {action.target or self.lane['lane']}: {action.reason}")
        self.counts[action.kind] += 1
        entry = {"action": action.kind, "target": action.target, "reason": action.reason}
        self.record.add({**entry, "before": brief(now, verdict)})
        self._notify({"event": "action", **entry}, verdict)
        self.eyes.jobs.start("action", lambda: self._perform(action, now.unit))

    def _perform(self, action: Action, judged: Unit) -> Done:
        """Beside the loop. ``judged`` is the look's unit. Never raises what the loop would not understand."""
        try:
            if action.kind == "unload":
                self._unload(action.target)
                return Done(action.kind, action.target)
            if action.kind == "restart":
                unit = signals.unit_of(f"{self.lane['lane']}.service")
                # A look takes seconds. Whoever has stopped or started the lane meanwhile keeps what he has.
                same = (unit.active, unit.invocation) == (judged.active, judged.invocation)
                if not same and unit.active != "unknown":
                    error = f"the unit has changed meanwhile, and is {unit.active} now"
                    return Done("restart", "", error, left=True)
            answer = ask_hand(self.config["socket"], action.kind, ACTION_SECONDS)
            error = "" if answer.get("answer") == "yes" else str(answer.get("text") or "no reason given")
        except (OSError, ValueError, router.RouterError) as fault:
            error = str(fault) or type(fault).__name__
        return Done(action.kind, action.target, router.one_line(error))

    def _unload(self, model: str) -> None:
        model = signals.called(model)
        router.request(self.lane, "POST", "/models/unload", {"model": model})
        until = time.monotonic() + UNLOAD_SECONDS
        while time.monotonic() < until:
            states = router.model_states(router.request(self.lane, "GET", "/models"))
            if states.get(model, ("unloaded", False))[0] != "loaded":
                return
            time.sleep(0.5)
        raise router.RouterError(f"{model} is still loaded after {UNLOAD_SECONDS:.0f} s")

    def _ended(self, done: Done, now: Observation, verdict: Verdict) -> None:
        # A restart has helped or not only once accelerator and speed were looked at.
        if done.error or done.kind != "restart":
            self._outcome(done.kind, done.target, done.error or "done", now, verdict)

    def _outcome(self, kind: str, target: str, text: str, now: Observation, verdict: Verdict) -> None:
        say(5, f"{kind} {target or self.lane['lane']}: {text}")
        entry = {"action": kind, "target": target, "result": text}
        self.record.add({**entry, "after": brief(now, verdict)})
        self._notify({"event": "outcome", **entry}, verdict)

    def _tell(self, now: Observation, verdict: Verdict) -> None:
        keys = frozenset(reason.key for reason in verdict.reasons)
        words = "; ".join(reason.text for reason in verdict.reasons)
        changed = verdict.state != self.state
        if changed:
            say(LEVELS[verdict.state], f"{self.state} -> {verdict.state}{': ' if words else ''}{words}")
        elif keys - self.keys:
            new = "; ".join(reason.text for reason in verdict.reasons if reason.key not in self.keys)
            say(LEVELS[verdict.state], f"still {verdict.state}: {new}")
        if changed:
            before, self.state, self.since = self.state, verdict.state, clock_text()
            self._notify({"event": "state", "before": before}, verdict)
        self.keys = keys
        for name in now.stale.keys() - self.stale:
            say(5, f"the baseline of {name} is of {now.stale[name]}: measure it again")
        self.stale = frozenset(now.stale)
        self.looks += 1
        usage = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        extra = {
            "since": self.since,
            "actions": self.record.last(),
            "watch": {
                "description": os.environ.get("GB10_WATCH", ""),
                "began": self.began,
                "looks": self.looks,
                "cpu_seconds": round(
                    usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime, 3
                ),
                "peak_mib": round(usage.ru_maxrss / 1024, 1),
                "interval_seconds": self.config["interval_seconds"],
            },
        }
        told = document(now, verdict, self.config, kernel.memory(), extra)
        run = self.config["run"]
        self._write(f"{run}/status.json", json.dumps(told) + "\n")
        self._write(f"{run}/gb10.prom", prometheus(now, verdict, self.config, self.counts))
        self._remember(verdict)
        shown = f"{verdict.state}{': ' if words else ''}{router.one_line(words)[:200]}"
        systemd(f"READY=1\nWATCHDOG=1\nSTATUS={shown}\n")

    def _remember(self, verdict: Verdict) -> None:
        kept = to_remember(verdict.history, Told(self.state, self.since, self.keys))
        if kept != self._kept and self._write(self.state_file, kept):
            self._kept = kept

    def _write(self, path: str, text: str) -> bool:
        """Whether it was written. A disk that is full keeps nobody from looking and acting."""
        try:
            write_file(path, text)
        except OSError as error:
            if path not in self._unwritten:
                say(4, f"{path} cannot be written: {error.strerror}")
            self._unwritten.add(path)
            return False
        if path in self._unwritten:
            say(5, f"{path} can be written again")
            self._unwritten.remove(path)
        return True

    def _notify(self, message: dict[str, Any], verdict: Verdict) -> None:
        self.notifier.tell(
            {
                "at": clock_text(),
                "host": socket.gethostname(),
                "lane": self.lane["lane"],
                "state": verdict.state,
                "reasons": [reason.text for reason in verdict.reasons],
                **message,
            }
        )


def read(path: str) -> dict[str, Any]:
    """A JSON object of our own."""
    with open(path, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        config = read(arguments[0])
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        config["webhook_file"] = f"{credentials}/webhook" if config["webhook"] and credentials else None
        watch = Watch(config, read(config["lane_file"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        say(3, f"its settings cannot be read: run the deploy again ({router.one_line(str(error))})")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    interval = float(config["interval_seconds"])
    following = time.monotonic()
    while True:
        watch.look()
        # Looks that took long are not made up for.
        following = max(following + interval, time.monotonic() + 0.2)
        time.sleep(max(0.0, following - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
