"""One connected host, for commands that talk to a box outside of a deploy."""

from __future__ import annotations

import codecs
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import ctx_state

from gb10.faults import BadInput, Fault
from gb10.inventory import load_inventory
from gb10.printable import LINES, printable


def named_host(hosts: Sequence[Host], name: str | None, inventory: Path) -> Host:
    """The host called ``name``, or the only one. Raises `BadInput`."""
    names = ", ".join(host.name for host in hosts) or "none"
    if name is None:
        if len(hosts) == 1:
            return hosts[0]
        raise BadInput(
            [Fault(str(inventory), f"it has {len(hosts)} hosts ({names})", "name one with --host")]
        )
    found = [host for host in hosts if host.name == name]
    if not found:
        raise BadInput([Fault(str(inventory), f"no host {name!r}", f"it has: {names}")])
    return found[0]


@contextmanager
def connected(inventory: Path, name: str | None) -> Iterator[Host]:
    """The host ``name`` of ``inventory`` with an open connection, for the time of a with block.

    Raises `BadInput` when there is no such host, pyinfra's ``PyinfraError`` when it cannot be reached.
    """
    hosts = load_inventory(inventory)
    host = named_host(list(hosts), name, inventory)
    # One dead box out of several must not stop a command to another.
    state = State(hosts, Config(), initial_limit=[host])  # type: ignore[no-untyped-call]
    with ctx_state.use(state):
        connect_all(state)
        if not host.connected:
            raise PyinfraError(f"{host.name} cannot be reached")
        try:
            yield host
        finally:
            host.disconnect()


def ssh_client(host: Host) -> Any:
    """The paramiko client of a host that is connected by SSH."""
    return host.connector.client  # type: ignore[attr-defined]  # pyinfra's SSH connector


def stream(host: Host, command: Sequence[str]) -> int:
    """Run ``command`` as root and copy its output as it comes, no control characters. Its exit status."""
    line = f"sudo -n {shlex.join(command)}"
    _, stdout, stderr = ssh_client(host).exec_command(line)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := stdout.channel.recv(4096):
        sys.stdout.buffer.write(printable(decoder.decode(chunk), LINES).encode())
        sys.stdout.buffer.flush()
    sys.stdout.buffer.write(decoder.decode(b"", final=True).encode())
    sys.stdout.buffer.flush()
    sys.stderr.write(printable(stderr.read().decode(errors="replace"), LINES))
    return int(stdout.channel.recv_exit_status())
