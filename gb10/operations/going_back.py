"""A change of the lane that, when it fails, puts the last lane that answered back in place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gevent
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gb10.desired import Desired
from gb10.facts.answer import read_answer

BACK_SECONDS = 1800  # a restart and the load of a large model from a slow disk


def commands(box: Desired, what: str, step: Callable[[Host], bool]) -> Iterator[FunctionCommand]:
    """The command of an operation that takes ``step`` and goes back when it is not True."""
    yield FunctionCommand(_guarded, (box, what, step), {})


@dataclass(frozen=True)
class ShellStep:
    """A step that is one command as root: True when it ended well, else its errors are shown."""

    command: StringCommand
    seconds: int

    def __call__(self, host: Host) -> bool:
        """Run it."""
        try:
            ok, output = host.run_shell_command(self.command, _sudo=True, _timeout=self.seconds)
        except (SSHException, OSError, EOFError, gevent.Timeout) as error:
            host.log_styled(f"connection lost ({error})", fg="red", log_func=logger.error)
            return False
        if not ok:
            for line in output.stderr_lines or output.stdout_lines:
                host.log_styled(line, fg="red", log_func=logger.error)
        return bool(ok)


def _guarded(state: State, host: Host, box: Desired, what: str, step: Callable[[Host], bool]) -> bool:  # noqa: ARG001
    if step(host):
        return True
    if box.data.rollback_on_failure:
        go_back(host, box, why=f"{what} failed", only_unverified=True)
    return False


def back_command(box: Desired, *, why: str, to: str = "", only_unverified: bool = False) -> StringCommand:
    """The on-box command that goes back; it prints one JSON object."""
    options: list[str | QuoteString] = ["--why", QuoteString(why)]
    if to:
        options += ["--to", QuoteString(to)]
    if only_unverified:
        options.append("--unverified")
    program = box.program_files["gb10_generations.py"].path
    return StringCommand("python3", QuoteString(program), QuoteString(box.lane_path), "back", *options)


def outcome_of(said: list[str], errors: list[str]) -> dict[str, Any]:
    """What ``gb10_generations.py back`` printed. Raises ValueError with its reason where it says nothing."""
    try:
        done = dict(json.loads(said[-1]))
        return {key: done[key] for key in ("state", "reason", "to", "image", "answer")}
    except (ValueError, IndexError, TypeError, KeyError):
        raise ValueError((errors or ["it gave no answer: the connection may be lost"])[-1]) from None


def go_back(host: Host, box: Desired, *, why: str, only_unverified: bool) -> None:
    """Go back and say what became of it. The deploy stays failed, whatever comes of it."""

    def say(text: str, colour: str = "red") -> None:
        host.log_styled(text, fg=colour, log_func=logger.error)

    try:
        command = back_command(box, why=why, only_unverified=only_unverified)
        _, output = host.run_shell_command(command, _sudo=True, _timeout=BACK_SECONDS)
        done = outcome_of(output.stdout_lines, output.stderr_lines)
    except (SSHException, OSError, EOFError, gevent.Timeout, ValueError) as error:
        say(f"going back is not known to have worked ({error}): look with gb10 rollback --list")
        return
    if done["state"] == "nothing":
        say(f"not gone back: {done['reason']}")
    elif done["state"] == "stuck":
        say(
            f"gone back to lane {done['to']} ({done['image']}), "
            f"which does not answer either: {done['reason']}"
        )
        say("so the fault is not in the change: look at the accelerator and at gb10 rollback --list")
    else:
        answer = read_answer([json.dumps(done["answer"])])
        say(f"gone back to lane {done['to']} ({done['image']}): {answer}", "yellow")
        say("the deploy has failed; what it built is still on the box to look at", "yellow")
