#!/usr/bin/env python3
"""Let the router have another preset file for as long as somebody holds on, and then its own again.

Usage: gb10_presets_hold.py PRESETS COMMAND...     COMMAND makes the router read its presets again

Reads one line of standard input: {"before": text that must be there now, "content": text to hold}. Puts the
content in place, runs the command, prints {"held": true}. Then it waits for the end of its input (the caller
has let go, was interrupted, its connection is gone) or for two minutes in which the caller says nothing. The
file becomes what it was, with its owner and mode, and the command runs again. Where somebody else has written
it meanwhile, a deploy say, that is left alone, and it is a failure: what the caller measured was not what it
asked for. Only one at a time holds: the folder's lock is kept until the end of this process, however it ends.

A power cut in between leaves the other file: the next deploy finds and corrects it.
Exit status: 0 all is as before; 1 not, with the reason on standard error.
Python 3.10 or newer, standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND_SECONDS = 300
SILENT_SECONDS = 120


class Failed(Exception):
    """It did not work; the text says why."""


def put(path: Path, content: bytes) -> None:
    """Give ``path`` another content, its owner and mode kept; a reader sees the old or the new one whole."""
    part = path.with_name(path.name + ".gb10-hold")
    status = path.stat()
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    shutil.copymode(path, part)
    os.chown(part, status.st_uid, status.st_gid)
    part.replace(path)


def reread(command: list[str]) -> None:
    """Run the command. Raises `Failed` with its last line."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"the presets cannot be read again: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()
        raise Failed(f"the presets cannot be read again: {said[-1]}")


def wait_for_end(wire: int) -> None:
    """Until the caller lets go. Raises `Failed` when it is silent for too long: a laptop whose network went
    away says nothing, and sshd would notice much later."""
    while True:
        ready, _, _ = select.select([wire], [], [], SILENT_SECONDS)
        if not ready:
            raise Failed(f"the caller said nothing for {SILENT_SECONDS} s")
        if not os.read(wire, 4096):
            return


def alone(folder: Path) -> None:
    """Keep ``folder``'s lock until this process ends. Raises `Failed` when another one has it.

    The folder's own, not a file's: nothing is left behind, and `put` gives the file a new inode.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"the presets in {folder} are held by another bench: wait for its end") from None


def hold(path: Path, command: list[str]) -> None:
    """Hold until the end of the input. Raises `Failed`."""
    wanted = json.loads(sys.stdin.readline())
    alone(path.parent)
    before, content = wanted["before"].encode(), wanted["content"].encode()
    if path.read_bytes() != before:
        raise Failed(f"{path} has been changed meanwhile: nothing was done")
    placed = False
    try:
        put(path, content)
        placed = True
        reread(command)
        print(json.dumps({"held": True}), flush=True)
        wait_for_end(sys.stdin.fileno())
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        now = path.read_bytes()
        if now == content:
            put(path, before)
            reread(command)
        elif placed or now != before:
            raise Failed(f"{path} has been changed by somebody else: left as it is")


def _stop(number: int, _frame: Any) -> None:
    raise Failed(f"ended by signal {number}")


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        hold(Path(arguments[0]), arguments[1:])
    except (Failed, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
