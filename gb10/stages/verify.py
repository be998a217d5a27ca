"""A deploy that ends green has answered: one chat, its tokens per second, and the device it ran on."""

from __future__ import annotations

import time

import gevent
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gb10.desired import Desired
from gb10.facts.answer import LaneAnswer, read_answer
from gb10.facts.shared import look
from gb10.operations import Commands, going_back
from gb10.stages import stage

TIMEOUT_SECONDS = 1200
HEARTBEAT_SECONDS = 5


@stage("verify")
def answer(box: Desired) -> None:
    answered(name="verify: the lane answers from its accelerator", box=box)


@operation()
def answered(box: Desired) -> Commands:
    """The lane completes a chat on its accelerator.

    A lane that does so with what it has loaded is left alone: the look itself is the proof, and nothing
    is changed. Otherwise the default model is loaded, which is a change and counts as one.
    """
    program = box.program_files["gb10_router.py"].path
    now = look(host, LaneAnswer, program=program, lane=box.lane_path)
    if now.state == "answered":
        if state.is_executing:
            host.log_styled(str(now), fg="green")
        return
    yield from going_back.commands(box, "verify", lambda host: _verify(host, program, box.lane_path))


def _verify(host: Host, program: str, lane: str) -> bool:
    command = StringCommand("python3", QuoteString(program), QuoteString(lane), "verify")
    started = time.monotonic()

    def heartbeat() -> None:
        while True:
            gevent.sleep(HEARTBEAT_SECONDS)
            host.log(f"waiting for the first answer ({time.monotonic() - started:.0f} s)")

    beat = gevent.spawn(heartbeat)
    try:
        _, output = host.run_shell_command(command, _sudo=True, _timeout=TIMEOUT_SECONDS)
    except (SSHException, OSError, EOFError, gevent.Timeout) as error:
        host.log_styled(
            f"verify failed: connection lost ({error}): run the deploy again", fg="red", log_func=logger.error
        )
        return False
    finally:
        beat.kill()
    if not output.stdout_lines:
        host.log_styled(f"verify failed: {output.stderr or 'no output'}", fg="red", log_func=logger.error)
        return False
    found = read_answer(output.stdout_lines)
    good = found.state == "answered"
    host.log_styled(str(found), fg="green" if good else "red", log_func=logger.info if good else logger.error)
    return good
