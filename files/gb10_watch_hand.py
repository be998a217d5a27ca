#!/usr/bin/env python3
"""The hand of the watch: the few things that need root, and nothing else.

Usage: gb10_watch_hand.py WATCH.json      started by gb10-watch-hand.socket

It reads one word from each connection and answers with one JSON object {"answer", "text"}:
  probe       run the probe's command in the lane's container: yes, no (it does not find the accelerator) or
              unknown (it could not be run)
  devices     the same with llama.cpp's own list of devices, which takes longer
  processes   run the command that lists the accelerator's users: yes with its output, or unknown
  restart     restart the lane's unit, which stays stopped where somebody has stopped it meanwhile: yes, or no
              with the reason
  stop        stop it
Whatever else comes in, however it is written, is refused: nothing of a caller gets into a command line.
Each word is done beside the others, once at a time: a driver that hangs keeps no restart away. It ends when
nobody has asked for a while; the socket starts it again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from gb10_watch_container import Container

IDLE_SECONDS = 120.0
PROBE_SECONDS = 15.0
AGAIN_SECONDS = 1.0
RESTART_SECONDS = 300.0
KILL_SECONDS = 0.5
MOST_RESTARTS = 10  # an hour, whoever asks: the last door against a watch that has gone mad
KEPT_BYTES = 512  # far more than that many times take, and less than the least a disk gives out
MOST_CONNECTIONS = 16
# Docker, runc and what is between them speak here, and not the probe.
_NOT_THE_PROBE = re.compile(
    r"OCI runtime|rpc error|unable to find user|No such container|container \w+ is not running"
    r"|context (?:deadline|canceled)"
    # One of them has crashed.
    r"|fatal error: |^panic: |runtime/cgo|^goroutine \d+ \["
    # And what is used up says nothing of the accelerator.
    r"|out of memory|Cannot allocate memory|Cannot fork|Too many open files|Resource temporarily unavailable"
    r"|No space left on device",
    re.IGNORECASE | re.MULTILINE,
)
_CALL = re.compile(r"\[0x[0-9a-f]+\]$|^Aborted")
# The probe's program was found, and the driver's library was not.
_NO_LIBRARY = "error while loading shared libraries"
ABORTED = 134  # by itself: llama.cpp does so, with its reason, where a device answers no more
_left: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}  # killed, and not ended yet


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, at most 500 characters of it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:500]).split())


def last_words(lane: dict[str, Any]) -> str:
    """Why the lane's unit did not start, from its journal."""
    # Only now: what it brings along is a third of this program's memory.
    import gb10_router

    return one_line(gb10_router.last_words(lane))


def run(command: Sequence[str], timeout: float) -> tuple[int | None, str]:
    """Exit status (None: it did not end, or there is no such command) and what it printed.

    A process that waits for a driver cannot even be killed: it is not waited for, and not started a second
    time beside itself.
    """
    key = tuple(command)
    if hanging(key):
        return None, f"{command[0]} of an earlier look still hangs"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        _left[key] = process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
        return None, f"{command[0]} has not ended after {timeout:.0f} s"
    return process.returncode, output[-65536:].decode(errors="replace")


def hanging(key: tuple[str, ...] | None = None) -> bool:
    """True while a command that was killed has not ended: this one, or any."""
    for one, process in list(_left.items()):
        if process.poll() is not None:
            _left.pop(one, None)
    return bool(_left) if key is None else key in _left


def judge_probe(status: int | None, output: str, expect: str) -> dict[str, str]:
    """What a probe's exit status and output say: "no" only where its own program ran and spoke."""
    lines = output.strip().splitlines()
    # Below what an abort says are the calls that led to it.
    telling = [line for line in lines if line.strip() and not _CALL.search(line)]
    last = one_line((telling or lines or ["no output"])[-1])
    if status == 0 and re.search(expect, output):
        return {"answer": "yes", "text": last}
    ran = status is not None and output.strip() and not _NOT_THE_PROBE.search(output)
    if status in (126, 127):  # there is no such program, or none that can be run
        ran = ran and _NO_LIBRARY in output
    elif status is not None and status != ABORTED:
        # 125 is what timeout, env and the like say of themselves; above 128 a signal has ended it. (255 is
        # what nvidia-smi says without a driver.)
        ran = ran and status != 125 and not 128 <= status <= 192
    return {
        "answer": "no" if ran else "unknown",
        "text": last if output.strip() else f"{last}, status {status}",
    }


class Hand:
    """``config`` is watch.json, ``lane`` is lane.json."""

    def __init__(self, config: dict[str, Any], lane: dict[str, Any]) -> None:
        self.config, self.lane = config, lane
        self.unit = f"{lane['lane']}.service"
        self.container = Container(lane["lane"])
        self.restarts = self._kept()
        self._at_work: set[str] = set()
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):  # to have its room before a disk is full
            self._keep()

    def at_work(self) -> bool:
        """True while something is done, or hangs."""
        return bool(self._at_work) or hanging()

    def once(self, verb: str) -> dict[str, str]:
        """`answer`, unless the same is being done already."""
        with self._lock:
            if verb in self._at_work:
                return {"answer": "unknown", "text": "the one before has not ended yet"}
            self._at_work.add(verb)
        try:
            return self.answer(verb)
        finally:
            with self._lock:
                self._at_work.discard(verb)

    def answer(self, verb: str) -> dict[str, str]:
        if verb in ("probe", "devices"):
            answer = self.probe(verb)
            if answer["answer"] == "no":
                # A second process must agree: what comes of a "no" is a restart.
                time.sleep(AGAIN_SECONDS)
                answer = self.probe(verb)
            return answer
        if verb == "processes" and self.config["processes"]["command"]:
            status, output = run(self.config["processes"]["command"], PROBE_SECONDS)
            return {"answer": "yes" if status == 0 else "unknown", "text": output}
        if verb == "restart":
            return self.restart()
        if verb == "stop":
            return self.systemctl("stop")
        return {"answer": "no", "text": "there is no such verb"}

    def probe(self, verb: str) -> dict[str, str]:
        probe = self.config[verb]
        seen = self.container.run(probe["command"], PROBE_SECONDS)
        return judge_probe(*seen, probe["expect"])

    def restart(self) -> dict[str, str]:
        now = time.monotonic()
        self.restarts = [at for at in {*self.restarts, *self._kept()} if 0 <= now - at < 3600]
        if len(self.restarts) >= MOST_RESTARTS:
            return {"answer": "no", "text": f"{MOST_RESTARTS} restarts in an hour are enough"}
        self.restarts.append(now)
        try:
            self._keep()
        except OSError as error:
            # Its number would be forgotten when this program ends, and there would be no bound.
            path = self.config["restarts_file"]
            return {"answer": "no", "text": f"a restart cannot be counted ({path}: {error.strerror})"}
        status, state = run(["systemctl", "is-active", self.unit], 30)
        if status is None:
            return {"answer": "no", "text": one_line(state)}
        # The unit's start limit is there for crashes: it must not count these.
        run(["systemctl", "reset-failed", self.unit], 30)
        # One that somebody has stopped, or is stopping, systemd itself leaves as it is.
        return self.systemctl("restart" if state.strip() == "failed" else "try-restart")

    def _kept(self) -> list[float]:
        """The restarts of before this program was started, times of this boot's clock."""
        try:
            with open(self.config["restarts_file"], encoding="ascii") as file:
                return [float(at) for at in json.load(file)]
        except (OSError, ValueError, TypeError):
            return []

    def _keep(self) -> None:
        """Write them down. Raises OSError."""
        # Over what is there: that takes no room, and a disk that others have filled keeps no restart away.
        file = os.open(self.config["restarts_file"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            text = json.dumps(self.restarts).ljust(KEPT_BYTES)
            if os.pwrite(file, text.encode("ascii"), 0) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)

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
    """Answer each connection until none has come for ``idle`` seconds and nothing is being done."""
    listener.settimeout(idle)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if hand.at_work():
                continue
            return
        if threading.active_count() > MOST_CONNECTIONS:
            connection.close()
            continue
        threading.Thread(target=serve_one, args=(hand, connection, allowed), daemon=True).start()


def serve_one(hand: Hand, connection: socket.socket, allowed: Sequence[int]) -> None:
    """One question and its answer."""
    with connection, contextlib.suppress(OSError):  # the other end may have gone
        connection.settimeout(5)
        if peer_of(connection) in allowed:
            verb = connection.makefile("rb").readline(64).decode("ascii", "replace").strip()
            connection.sendall(json.dumps(hand.once(verb)).encode())


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
