"""Which state of the repository this is."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gb10.rendering import TOP


@dataclass(frozen=True)
class Revision:
    """``commit`` as git names it, empty where this is no git work tree; ``dirty``: it has changes since."""

    commit: str
    dirty: bool


@cache
def revision() -> Revision:
    """Of the folder that this program runs from."""
    return revision_of(TOP)


def revision_of(folder: Path) -> Revision:
    """Of the work tree that ``folder`` is in."""
    commit = _git(folder, "rev-parse", "HEAD")
    return Revision(commit, bool(commit and _git(folder, "status", "--porcelain", "--untracked-files=no")))


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
