"""The way to the router's port on the box: a channel of the SSH connection that is open already.

Each HTTP connection gets a channel of its own. Nothing listens on the laptop for it, so there is no port that
somebody else could use and nothing to close after a crash.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from paramiko import Channel, SSHException
from paramiko.ssh_exception import ChannelException
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from gb10.remote import ssh_client

OPEN_SECONDS = 30
OUTPUT_BYTES = 1 << 20  # of a command on the box: far more than any of ours prints


class ChannelSocket:
    """A paramiko channel with as much of a socket's face as ``http.client`` looks at."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._readers = 0
        self._closed = False

    def sendall(self, data: bytes) -> None:
        self._channel.sendall(data)

    def settimeout(self, seconds: float | None) -> None:
        self._channel.settimeout(seconds)

    def makefile(self, _mode: str = "rb", *_: Any) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Reader(self._channel, self._reader_gone))

    def close(self) -> None:
        # As with a real socket, an answer that is still read keeps the wire open.
        self._closed = True
        if self._readers == 0:
            self._channel.close()

    def abort(self) -> None:
        """End it now: whoever reads gets the end of the stream."""
        self._channel.close()

    def _reader_gone(self) -> None:
        self._readers -= 1
        if self._closed:
            self.close()


class _Reader(io.RawIOBase):
    def __init__(self, channel: Channel, gone: Callable[[], None]) -> None:
        self._channel = channel
        self._gone: Callable[[], None] | None = gone

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._channel.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._gone is not None:
            gone, self._gone = self._gone, None
            gone()
        super().close()


def wire_to(host: Host, port: int, address: str = "127.0.0.1") -> Callable[[float], ChannelSocket]:
    """A function that opens a connection to ``port`` on the host, given a timeout in seconds.

    What it opens raises `PyinfraError` where the host's sshd does not forward, ConnectionError where nothing
    listens.
    """

    def open_wire(timeout: float) -> ChannelSocket:
        transport = ssh_client(host).get_transport()
        try:
            channel = transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=OPEN_SECONDS
            )
        except ChannelException as error:
            if error.code == 1:
                raise PyinfraError(
                    f"{host.name}: its sshd refuses to forward: allow it (AllowTcpForwarding local)"
                ) from None
            raise ConnectionError(f"nothing listens on port {port}") from None
        except (SSHException, EOFError) as error:
            raise ConnectionError(f"the SSH connection is gone ({error})") from None
        channel.settimeout(timeout)
        return ChannelSocket(channel)

    return open_wire


def run_as_root(
    host: Host, command: Sequence[str], stdin: str = "", seconds: float = 60
) -> tuple[int, str, str]:
    """Status, output and error output of ``command`` on the host. ``stdin`` is on no command line and in no
    log.

    Raises `PyinfraError` after ``seconds`` without a byte, and when the connection is lost.
    """
    try:
        writer, stdout, stderr = ssh_client(host).exec_command(
            f"sudo -n {shlex.join(command)}", timeout=seconds
        )
        if stdin:
            writer.write(stdin.encode())
        writer.channel.shutdown_write()
        output, errors = stdout.read(OUTPUT_BYTES), stderr.read(OUTPUT_BYTES)
        return (
            stdout.channel.recv_exit_status(),
            output.decode(errors="replace"),
            errors.decode(errors="replace"),
        )
    except TimeoutError:
        raise PyinfraError(f"{host.name}: {command[0]} did not end in {seconds:.0f} s") from None
    except (SSHException, OSError, EOFError) as error:
        raise PyinfraError(f"{host.name}: the SSH connection is gone ({error})") from None


def read_key(host: Host, path: str) -> str:
    """The lane's API key, into memory and nowhere else. Raises `PyinfraError`, which never holds it."""
    status, output, errors = run_as_root(host, ["cat", path])
    if status:
        said = (errors.strip().splitlines() or ["no reason"])[-1]
        raise PyinfraError(f"{host.name}: the API key cannot be read: {said}: run the deploy first")
    key = output.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise PyinfraError(f"{host.name}: {path} does not hold an API key: run the deploy again")
    return key
