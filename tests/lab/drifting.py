"""``gb10 drift`` as a person runs it: the real command, its JSON and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.lab import deploying, paths
from tests.lab.host import LabHost

LIMIT_SECONDS = 120
# The command from whatever repository the working folder is: the installed one knows only its own.
GB10 = [sys.executable, "-c", "from gb10.cli import main; main()"]


def run(
    *arguments: str, top: Path = paths.REPOSITORY, inventory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """``gb10 drift`` with these arguments, of the repository ``top``."""
    named = inventory or top / deploying.INVENTORY
    return subprocess.run(
        [*GB10, "drift", "--inventory", str(named), *arguments],
        cwd=top,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env=environment(top),
    )


def environment(top: Path = paths.REPOSITORY) -> dict[str, str]:
    """For programs of the repository ``top``."""
    return {**os.environ, "PYTHONPATH": str(top), "PYINFRA_PROGRESS": "off"}


def look(host: LabHost, *options: str, top: Path = paths.REPOSITORY) -> tuple[int, dict[str, Any]]:
    """Exit status, and the report of the one host."""
    done = run(host.name, "--json", *options, top=top)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    (report,) = json.loads(done.stdout)["hosts"]
    return done.returncode, report


def items(report: dict[str, Any]) -> dict[str, str]:
    """Item to class."""
    return {item["id"]: item["class"] for item in report["items"]}


def assert_clean(host: LabHost, top: Path = paths.REPOSITORY) -> None:
    status, report = look(host, top=top)
    assert (status, report["state"], items(report)) == (0, "clean", {}), report
