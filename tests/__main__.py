"""All tests, in two runs at once: a lab host waits more than it works.

What must have the machine for itself (``pytest.mark.alone``) waits for the end of the second run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import IO

from tests import turns
from tests.lab import paths

# What needs no lab host, or one that was given its image. Half of what need not be alone, by time.
SECOND = (
    "tests/unit",
    "tests/browser",
    "tests/lab/test_changes.py",
    "tests/lab/test_convert.py",
    "tests/lab/test_downloads.py",
    "tests/lab/test_drift.py",
    "tests/lab/test_drift_outputs.py",
)
FIRST = ("tests/lab", *(f"--ignore={name}" for name in SECOND))
HOSTS = {turns.FIRST: "test", turns.SECOND: "second"}


def main() -> int:
    # It reaches both runs too: each puts its host away, and then this one ends.
    signal.signal(signal.SIGINT, lambda *_: None)
    with tempfile.TemporaryFile("w+b") as log:
        with _begin(turns.SECOND, SECOND, log) as second, _begin(turns.FIRST, FIRST) as first:
            statuses = [first.wait(), second.wait()]
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
        print("\nbeside it:", *(lines if statuses[1] else lines[-1:]), sep="\n")
    return int(any(statuses))


def _begin(run: str, arguments: tuple[str, ...], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
        env=os.environ | {"GB10_TEST_RUN": run, "GB10_LAB_TEST_HOST": HOSTS[run]},
    )


if __name__ == "__main__":
    sys.exit(main())
