#!/usr/bin/env python3
"""Hold the box for one deploy, for as long as that deploy is there.

It is sent along by the deploy and lives in its SSH session. It takes the lock, says so in one line of JSON,
and keeps it while the deploy goes on sending it something. The end of its input (the deploy ended, its
connection broke), or a silence of SILENCE_SECONDS (the deploy's network is gone, and nobody has told sshd),
releases the lock; so does the end of this process in any other way: it is the kernel's lock, the file is only
a note of who holds it.

Usage: gb10_lock.py WHO TOKEN [PATH]
  WHO names the deploy for people. TOKEN is the deploy's own: after a broken connection it takes its lock over
  from the process that its old connection left behind.
Prints {"held": true}, or {"held": false, "who": text, "since": text}.
Exit status: 0 held and released, 1 not held, 2 bad usage.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time

PATH = "/run/gb10-deploy.lock"
SILENCE_SECONDS = 90.0
TAKE_OVER_SECONDS = 3.0


def note_of(path: str) -> dict[str, str]:
    """What the holder wrote of itself: who, since, token, pid; empty when it is not to be read."""
    try:
        with open(path, encoding="utf-8") as file:
            note = json.load(file)
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in note.items()} if isinstance(note, dict) else {}


def take(path: str, who: str, token: str) -> tuple[int, dict[str, str]]:
    """The open file that holds the lock, or -1 and the note of whoever has it."""
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Of the process, not of the open file: others can ask who has it without taking it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            note = note_of(path)
            if note.get("token") != token or time.monotonic() >= deadline:
                return -1, note
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(note["pid"]), signal.SIGTERM)
            time.sleep(0.1)
            continue
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        note = {"who": who, "since": since, "token": token, "pid": str(os.getpid())}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(note).encode(), 0)
        return file, note


def stay(source: int, silence: float) -> None:
    """Until ``source`` ends or says nothing for ``silence`` seconds."""
    while select.select([source], [], [], silence)[0]:
        if not os.read(source, 4096):
            return


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    who, token, path = [*arguments, PATH][:3]
    file, note = take(path, who, token)
    if file < 0:
        print(
            json.dumps({"held": False, "who": note.get("who", ""), "since": note.get("since", "")}),
            flush=True,
        )
        return 1
    print(json.dumps({"held": True}), flush=True)
    stay(sys.stdin.fileno(), SILENCE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
