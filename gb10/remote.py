"""One connected host, for commands that talk to a box outside of a deploy."""

from __future__ import annotations

import codecs
import errno
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paramiko import SSHException
from pyinfra.api.config import Config
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import ctx_state

from gb10.faults import BadInput, Fault
from gb10.inventory import load_inventory
from gb10.printable import LINES, printable
from gb10.rendering import shown

_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def named_host(hosts: Sequence[Host], name: str | None, inventory: Path) -> Host:
    """The host called ``name``, or the only one. Raises `BadInput`."""
    names = ", ".join(host.name for host in hosts) or "none"
    if name is None:
        if len(hosts) == 1:
            return hosts[0]
        raise BadInput(
            [Fault(shown(inventory), f"it has {len(hosts)} hosts ({names})", "name one with --host")]
        )
    found = [host for host in hosts if host.name == name]
    if not found:
        raise BadInput([Fault(shown(inventory), f"no host {name!r}", f"it has: {names}")])
    return found[0]


@contextmanager
def connected(inventory: Path, name: str | None) -> Iterator[Host]:
    """The host ``name`` of ``inventory`` with an open connection, for the time of a with block.

    Raises `BadInput` when there is no such host, pyinfra's ``PyinfraError`` when it cannot be reached, or
    goes away meanwhile.
    """
    hosts = load_inventory(inventory)
    host = named_host(list(hosts), name, inventory)
    # One dead box out of several must not stop a command to another.
    state = State(hosts, Config(), initial_limit=[host])  # type: ignore[no-untyped-call]
    with ctx_state.use(state):
        _connect(host)
        state.activate_host(host)
        try:
            yield host
        except (SSHException, EOFError, OSError) as error:
            if not _broke(error):
                raise
            what = f"the connection broke ({str(error) or type(error).__name__})"
            raise PyinfraError(f"{host.name}: {what}: run it again") from None
        finally:
            # What is broken already cannot be ended in order.
            with suppress(SSHException, EOFError, OSError):
                host.disconnect()


def _broke(error: SSHException | EOFError | OSError) -> bool:
    """Whether it was the connection: a disk that is full here raises an OSError too."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        return error.errno in _NO_WAY
    return True


def _connect(host: Host) -> None:
    # Not in pyinfra's pool: what a greenlet raises is printed as a traceback before anybody can catch it.
    try:
        host.connect(show_errors=False, raise_exceptions=True)
    except ConnectError as error:
        # pyinfra says "what (why)", and why may have line ends.
        raise PyinfraError(unreachable(host, " ".join(str(error).split()))) from None
    except PyinfraError as error:
        raise PyinfraError(f"{host.name}: {error}: correct ssh_key in its data") from None


def unreachable(host: Host, reason: str) -> str:
    """What to say of a host that lets nobody in: why, and what a person tries first."""
    user, name = host.data.get("ssh_user"), host.data.get("ssh_hostname") or host.name
    by_hand = f"ssh {user}@{name}" if user else f"ssh {name}"
    ask = "does it know you" if reason.startswith("Authentication") else "is it on"
    return f"{host.name} cannot be reached ({reason}): {ask}? Try: {by_hand}"


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
