#!/usr/bin/env python3
"""The hand of the watch: the few things that need root, and nothing else.

Usage: gb10_watch_hand.py WATCH.json      started by gb10-watch-hand.socket

It reads one word from each connection and answers with one JSON object {"answer", "text"}:
  probe       run the probe's command in the lane's container: yes, no (it does not find the accelerator) or
              unknown (it could not be run)
  processes   run the command that lists the accelerator's users: yes with its output, or unknown
  restart     restart the lane's unit: yes, or no with the reason
  stop        stop it
Whatever else comes in, however it is written, is refused: nothing of a caller gets into a command line.
It ends when nobody has asked for a while; the socket starts it again.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

IDLE_SECONDS = 120.0
PROBE_SECONDS = 15.0
AGAIN_SECONDS = 1.0
RESTART_SECONDS = 300.0
MOST_RESTARTS = 10  # an hour, whoever asks: the last door against a watch that has gone mad
_NO_CONTAINER = re.compile(
    r"No such container|is not running|Cannot connect to the Docker|is paused|context "
)


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, at most 500 characters of it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:500]).split())


def last_words(lane: dict[str, Any]) -> str:
    """Why the lane's unit did not start, from its journal."""
    # Only now: what it brings along is a third of this program's memory.
    import gb10_router

    return one_line(gb10_router.last_words(lane))


def run(command: Sequence[str], timeout: float) -> tuple[int | None, str]:
    """Exit status (None: it did not end, or there is no such command) and what it printed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} has not ended after {timeout:.0f} s"
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    return done.returncode, done.stdout[-65536:].decode(errors="replace")


def judge_probe(status: int | None, output: str, expect: str) -> dict[str, str]:
    """What a probe's exit status and output say."""
    last = one_line((output.strip().splitlines() or ["no output"])[-1])
    if status is None or (status and _NO_CONTAINER.search(output)):
        return {"answer": "unknown", "text": last}
    return {"answer": "yes" if status == 0 and re.search(expect, output) else "no", "text": last}


class Hand:
    """``config`` is watch.json, ``lane`` is lane.json."""

    def __init__(self, config: dict[str, Any], lane: dict[str, Any]) -> None:
        self.config, self.lane = config, lane
        self.unit = f"{lane['lane']}.service"
        self.restarts: list[float] = []

    def answer(self, verb: str) -> dict[str, str]:
        if verb == "probe":
            answer = self.probe()
            if answer["answer"] == "no":
                # A second process must agree: what comes of a "no" is a restart.
                time.sleep(AGAIN_SECONDS)
                answer = self.probe()
            return answer
        if verb == "processes" and self.config["processes"]["command"]:
            status, output = run(self.config["processes"]["command"], PROBE_SECONDS)
            return {"answer": "unknown" if status else "yes" if status == 0 else "unknown", "text": output}
        if verb == "restart":
            return self.restart()
        if verb == "stop":
            return self.systemctl("stop")
        return {"answer": "no", "text": "there is no such verb"}

    def probe(self) -> dict[str, str]:
        probe = self.config["probe"]
        command = ["docker", "exec", self.lane["lane"], *probe["command"]]
        return judge_probe(*run(command, PROBE_SECONDS), probe["expect"])

    def restart(self) -> dict[str, str]:
        now = time.monotonic()
        self.restarts = [at for at in self.restarts if now - at < 3600]
        if len(self.restarts) >= MOST_RESTARTS:
            return {"answer": "no", "text": f"{MOST_RESTARTS} restarts in an hour are enough"}
        self.restarts.append(now)
        # The unit's start limit is there for crashes: it must not count these.
        run(["systemctl", "reset-failed", self.unit], 30)
        return self.systemctl("restart")

    def systemctl(self, verb: str) -> dict[str, str]:
        status, output = run(["systemctl", verb, self.unit], RESTART_SECONDS)
        if status == 0:
            return {"answer": "yes", "text": ""}
        if status is None:
            return {"answer": "no", "text": one_line(output)}
        return {"answer": "no", "text": last_words(self.lane)}


def peer_of(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", found)[1]
    return user


def serve(hand: Hand, listener: socket.socket, allowed: Sequence[int], idle: float = IDLE_SECONDS) -> None:
    """Answer one connection after the other until none has come for ``idle`` seconds."""
    listener.settimeout(idle)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        with connection:
            connection.settimeout(5)
            try:
                if peer_of(connection) in allowed:
                    verb = connection.makefile("rb").readline(64).decode("ascii", "replace").strip()
                    connection.sendall(json.dumps(hand.answer(verb)).encode())
            except OSError:
                continue  # the other end has gone


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        config = json.load(file)
    with open(config["lane_file"], encoding="utf-8") as file:
        lane = json.load(file)
    with socket.socket(fileno=3) as listener:
        serve(Hand(config, lane), listener, (0, config["user_id"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
