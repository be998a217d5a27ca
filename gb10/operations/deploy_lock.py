"""One at a time on a box: a deploy, a rollback or a bench.

Preflight refuses where another deploy is under way; that is a look (`BoxReport`), so a dry run takes
nothing. The lock itself is taken as the first thing that a deploy executes: by a process on the box that
lives in this deploy's SSH connection (files/gb10_lock.py). It is no change of the box and counts as none.
"""

from __future__ import annotations

import getpass
import json
import shlex
import socket
import threading
import time
from typing import Any
from uuid import uuid4

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host, state

from gb10.desired import Desired
from gb10.facts.drift import foresee
from gb10.operations import Commands
from gb10.rendering import TOP
from gb10.requirements import under_way

# Far below the 90 s of silence after which the box lets go.
SIGN_OF_LIFE_SECONDS = 15
ANSWER_SECONDS = 30
_TOKEN = uuid4().hex
_PLACE = "gb10_deploy_lock"


class Refused(PyinfraError):
    """Somebody else holds the box; the text says who and since when."""


def who() -> str:
    """This deploy for other people: ``user@machine``."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"somebody@{socket.gethostname()}"


@operation()
def held(box: Desired) -> Commands:
    """This deploy holds the box. Then everything that the deploy will look at is looked at in one go."""
    if not state.is_executing:
        return
    try:
        take(host, "deploy")
    except PyinfraError as error:
        yield FunctionCommand(_fail, (str(error),), {})
        return
    foresee(host, box)


def _fail(state: State, host: Host, reason: str) -> bool:  # noqa: ARG001  (pyinfra passes both)
    host.log_styled(reason, fg="red", log_func=logger.error)
    return False


def take(host: Host, what: str) -> None:
    """Hold ``host`` from now on, for ``what``. Raises `Refused`, PyinfraError where the box does not say."""
    client = getattr(host.connector, "client", None)
    if client is None:
        return  # a connector without a connection (a test's) has nobody beside it
    program = (TOP / "files" / "gb10_lock.py").read_text()
    command = ["sudo", "-n", "python3", "-I", "-c", program, f"{who()} ({what})", _TOKEN]
    try:
        channel = client.get_transport().open_session(timeout=ANSWER_SECONDS)
        channel.settimeout(ANSWER_SECONDS)
        channel.exec_command(shlex.join(command))
        line = channel.makefile("r").readline()
    except (SSHException, OSError, EOFError) as error:
        raise PyinfraError(f"{host.name}: the deploy lock cannot be taken: {error}: run it again") from None
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        said = channel.makefile_stderr("r").read().strip().splitlines() or ["no answer"]
        raise PyinfraError(
            f"{host.name}: the deploy lock cannot be taken: {said[-1]}: run it again"
        ) from None
    if not answer["held"]:
        raise Refused(f"{host.name}: {under_way(answer)}: wait for its end, then run this one again")
    host.connector_data[_PLACE] = channel
    # pyinfra's own command makes threads greenlets; under `gb10` it is a real one.
    threading.Thread(target=_stay_alive, args=(host, client, channel, what), daemon=True).start()


def again(host: Host) -> None:
    """After a new connection: hold the box again, where this deploy held it.

    Raises `Refused` where another deploy has come in between, OSError where the box does not say.
    """
    if _PLACE not in getattr(host, "connector_data", {}):
        return
    try:
        take(host, "deploy")
    except Refused:
        raise
    except PyinfraError as error:
        raise ConnectionError(str(error)) from None


def _stay_alive(host: Host, client: Any, channel: Any, what: str) -> None:
    while not channel.closed:
        try:
            channel.sendall(b"\n")
        except OSError:
            break
        time.sleep(SIGN_OF_LIFE_SECONDS)
    transport = client.get_transport()
    if transport is None or not transport.is_active():
        return  # the connection has ended, and with it what was to be held
    # This machine slept, and the box let go of a silent holder. What goes on must hold it again.
    try:
        take(host, what)
    except PyinfraError as error:
        host.log_styled(f"{error}; this one ends here", fg="red", log_func=logger.error)
        client.close()
