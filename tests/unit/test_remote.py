"""One connected host: what a person reads when there is none, or none any more."""

from __future__ import annotations

import errno
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paramiko import SSHException
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from gb10.commands.chat import IF_DEPLOYED
from gb10.remote import connected
from tests.unit.commands import gb10


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        yield taken.getsockname()[1]


def inventory(tmp_path: Path, **data: object) -> Path:
    path = tmp_path / "inventory.py"
    path.write_text(f"gb10 = [('spark', {dict(ssh_hostname='127.0.0.1', ssh_user='me', **data)!r})]\n")
    return path


def test_a_box_that_is_off(tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = inventory(tmp_path, ssh_port=closed_port)
    status, output, errors = gb10(capsys, "status", "--inventory", path)
    assert (status, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("gb10: spark cannot be reached (Could not connect (")
    assert line.endswith("is it on? Try: ssh me@127.0.0.1")


def test_a_key_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(PyinfraError, match=r"^spark: .*/no/key.*: correct ssh_key in its data$"),
        connected(inventory(tmp_path, ssh_key="/no/key"), None),
    ):
        pass
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "error",
    [
        SSHException("SSH session not active"),
        EOFError(),
        ConnectionResetError("reset"),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
)
def test_a_connection_that_breaks(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "connect", lambda host, **_: None)
    monkeypatch.setattr(Host, "disconnect", lambda host: None)
    with (
        pytest.raises(PyinfraError, match=r"^spark: the connection broke \(.+\): run it again$"),
        connected(inventory(tmp_path), None),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), FileNotFoundError("x")])
def test_a_fault_of_the_laptop_is_no_connection(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "connect", lambda host, **_: None)
    monkeypatch.setattr(Host, "disconnect", lambda host: None)
    with pytest.raises(type(error)), connected(inventory(tmp_path), None):
        raise error


def test_a_chat_before_the_first_deploy(tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    command = ["sh", "-c", IF_DEPLOYED, str(program), "sh", str(program), "it's"]

    def run() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run() == (1, "nothing is deployed here yet: run the deploy\n")
    program.write_text('echo "$1"\n')
    assert run() == (0, "it's\n")
    assert shlex.split(shlex.join(command)) == command
