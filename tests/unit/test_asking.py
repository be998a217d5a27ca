"""Whether somebody can answer a deploy that asks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gb10.rendering import TOP

PYINFRA = Path(sys.executable).with_name("pyinfra")
REFUSED = "a deploy asks before it begins, and here is no terminal to answer on: -y deploys without asking"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Of a box that nobody reaches: what is not refused ends there."""
    path = tmp_path / "inventory.py"
    path.write_text("gb10 = [('spark', {'ssh_hostname': '127.0.0.1', 'ssh_port': 1})]\n")
    return path


def said(inventory: Path, *options: str, stdin: int) -> str:
    command = [str(PYINFRA), str(inventory), "deploy.py", *options]
    done = subprocess.run(
        command,
        cwd=TOP,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    return done.stdout


def test_nobody_can_answer(inventory: Path) -> None:
    output = said(inventory, stdin=subprocess.DEVNULL)
    assert REFUSED in " ".join(output.split())
    assert "Connecting" not in output


@pytest.mark.parametrize("option", ["-y", "--dry"])
def test_what_does_not_ask_needs_no_terminal(option: str, inventory: Path) -> None:
    output = said(inventory, option, stdin=subprocess.DEVNULL)
    assert "no terminal" not in output
    assert "Connecting" in output


def test_a_terminal_and_a_pipe_can_answer(inventory: Path) -> None:
    ours, theirs = pty.openpty()
    reading, writing = os.pipe()
    os.close(writing)
    for answers in (theirs, reading):
        assert "Connecting" in said(inventory, stdin=answers)
    for one in (ours, theirs, reading):
        os.close(one)
