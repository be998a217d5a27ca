"""What the lab says while it works: one line for each step, and a sign of life in long ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.errors import LabError

_BEAT = 5.0


def say(text: str) -> None:
    """Print a line of progress on stderr (stdout belongs to results)."""
    sys.stderr.write(f"lab: {text}\n")  # one write: lines of two threads do not mix
    sys.stderr.flush()


def run_logged(
    what: str,
    command: Sequence[str],
    log: Path,
    *,
    limit: float,
    env: Mapping[str, str] | None = None,
    stdin: Path | None = None,
) -> None:
    """Run `command` with its output in `log`, saying every few seconds that it still runs.

    `limit` is in seconds. Raises LabError, with the log's last line and place, when it fails or takes longer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    say(what)
    source = stdin.open("rb") if stdin else subprocess.DEVNULL
    try:
        with (
            log.open("ab") as out,
            subprocess.Popen(command, stdin=source, stdout=out, stderr=subprocess.STDOUT, env=env) as running,
        ):
            try:
                _watch(what, running, begun, limit, log)
            except BaseException:
                running.terminate()
                raise
    finally:
        if not isinstance(source, int):
            source.close()
    if running.returncode:
        raise LabError(f"{what}: failed ({running.returncode}): {_last_line(log)} (log: {log})")
    say(f"{what}: done in {time.monotonic() - begun:.0f} s")


def _watch(what: str, running: subprocess.Popen[bytes], begun: float, limit: float, log: Path) -> None:
    while True:
        try:
            running.wait(_BEAT)
            return
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - begun
            if spent > limit:
                raise LabError(f"{what}: not done after {limit:.0f} s (log: {log})") from None
            say(f"{what}: {spent:.0f} s: {_last_line(log)[:100]}")


def _last_line(log: Path) -> str:
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - 2000))
        lines = handle.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
