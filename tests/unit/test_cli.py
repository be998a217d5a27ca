"""The gb10 command as a whole: help, usage, exit statuses, and choosing a host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pyinfra.api.exceptions import ConnectError, PyinfraError

from gb10.cli import cli
from gb10.faults import BadInput, Fault
from gb10.remote import named_host, stream
from tests.unit.commands import gb10

Captured = pytest.CaptureFixture[str]
COMMANDS = sorted(cli.commands)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)])
def test_help(arguments: list[str], capsys: Captured) -> None:
    status, output, errors = gb10(capsys, *arguments)
    assert (status, errors) == (0, "")
    assert output.startswith("Usage: gb10")


def test_every_command_is_listed_with_a_word(capsys: Captured) -> None:
    listing = gb10(capsys, "--help")[1].partition("Commands:")[2].splitlines()
    described = [line.split(None, 1) for line in listing if line.strip()]
    assert {"render", "check", "chat", "plan", "pin"} <= {name for name, _ in described}
    for _, words in described:
        assert words[0].isupper()


@pytest.mark.parametrize(
    "arguments",
    [
        ["sing"],
        ["render"],
        ["chat"],
        ["check", "--no-such"],
        # For these 2 says something of a box, or of a result.
        ["drift", "--bogus"],
        ["drift", "--only", "nosuch"],
        ["drift", "--timeout", "0"],
        ["bench", "compare", "--bogus"],
        ["bench", "compare", "only-one"],
        ["status", "--bogus"],
        ["pin", "--bogus"],
    ],
)
def test_usage_errors(arguments: list[str], capsys: Captured) -> None:
    """Nobody takes a mistyped option for drift, a loss or a degraded box."""
    status, output, errors = gb10(capsys, *arguments)
    assert (status, output) == (1, "")
    assert "Error: " in errors


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command `fail` that raises what it is given."""

    def give(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        monkeypatch.setitem(cli.commands, "fail", fail)

    return give


@pytest.mark.parametrize(
    "error", [PyinfraError("box cannot be reached"), ConnectError("box cannot be reached")]
)
def test_a_fault_is_one_line(error: PyinfraError, failing: Any, capsys: Captured) -> None:
    failing(error)
    assert gb10(capsys, "fail") == (1, "", "gb10: box cannot be reached\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "/no/x.tar"),
            "/no/x.tar: No such file or directory",
        ),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RecursionError("maximum"), "what was read is nested too deeply to be what it should be"),
    ],
)
def test_what_the_laptop_refuses_is_one_line(
    error: Exception, words: str, failing: Any, capsys: Captured
) -> None:
    failing(error)
    assert gb10(capsys, "fail") == (1, "", f"gb10: {words}\n")


def test_bad_input_is_a_line_for_each_fault(failing: Any, capsys: Captured) -> None:
    failing(BadInput([Fault("a:1 b", "is wrong", "do x"), Fault("a:2 c", "is wrong", "do y")]))
    status, _, errors = gb10(capsys, "fail")
    assert status == 1
    assert errors.splitlines()[1:] == ["  a:1 b: is wrong: do x", "  a:2 c: is wrong: do y"]


def test_ctrl_c(failing: Any, capsys: Captured) -> None:
    failing(KeyboardInterrupt())
    assert gb10(capsys, "fail")[0] == 130


@pytest.mark.parametrize("command", ["status", "rollback", "logs"])
def test_who_names_a_box_as_drift_takes_it_is_told_how(command: str, capsys: Captured) -> None:
    status, _, errors = gb10(capsys, command, "demo")
    assert status == 1
    assert errors.endswith("A box is named with --host NAME.\n")
    assert "--host NAME" not in gb10(capsys, "check", "demo")[2]


def test_no_is_an_answer(failing: Any, capsys: Captured) -> None:
    failing(click.Abort())
    assert gb10(capsys, "fail") == (1, "", "gb10: nothing was changed\n")


# -- which host ---------------------------------------------------------------------------------------


def hosts(*names: str) -> list[Any]:
    return [SimpleNamespace(name=name) for name in names]


INVENTORY = Path("inventory.py")


def test_the_only_host_needs_no_name() -> None:
    assert named_host(hosts("one"), None, INVENTORY).name == "one"
    assert named_host(hosts("one", "two"), "two", INVENTORY).name == "two"


@pytest.mark.parametrize(
    ("there", "name", "word"),
    [
        (("one", "two"), None, "inventory.py: it has 2 hosts (one, two): name one with --host"),
        ((), None, "inventory.py: it has 0 hosts (none)"),
        (("one",), "tow", "inventory.py: no host 'tow': it has: one"),
    ],
)
def test_no_such_host(there: tuple[str, ...], name: str | None, word: str) -> None:
    with pytest.raises(BadInput) as caught:
        named_host(hosts(*there), name, INVENTORY)
    assert word in str(caught.value)


def test_chat_with_a_host_that_is_not_there(capsys: Captured) -> None:
    status, _, errors = gb10(capsys, "chat", "--host", "none", "hello")
    assert status == 1
    assert "no host 'none': it has: gb10.local" in errors


class Channel:
    """An SSH channel that gives its output in pieces."""

    def __init__(self, *pieces: bytes, status: int) -> None:
        self.pieces = list(pieces)
        self.status = status

    def recv(self, _: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def recv_exit_status(self) -> int:
        return self.status


def test_a_fault_does_not_move_the_cursor(failing: Any, capsys: Captured) -> None:
    failing(PyinfraError("box: \x1b[2Kall is well"))
    assert gb10(capsys, "fail")[2] == "gb10: box: \\x1b[2Kall is well\n"


def test_stream_copies_output_and_status(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    asked: list[str] = []

    def exec_command(line: str) -> tuple[None, Any, Any]:
        asked.append(line)
        channel = Channel(b"Gr\xc3", b"\xbc\xc3\x9fe\n\x1b[2K", status=3)
        return None, SimpleNamespace(channel=channel), SimpleNamespace(read=lambda: b"x: failed\x07\n")

    host = SimpleNamespace(connector=SimpleNamespace(client=SimpleNamespace(exec_command=exec_command)))
    assert stream(host, ["python3", "/p.py", "chat", "it's; rm -r / $HOME"]) == 3  # type: ignore[arg-type]
    captured = capfdbinary.readouterr()
    assert captured.out == "Grüße\n\\x1b[2K".encode()
    assert captured.err == b"x: failed\\x07\n"
    assert asked == ["sudo -n python3 /p.py chat 'it'\"'\"'s; rm -r / $HOME'"]
