"""How SSH connections are opened: the one place that knows about sockets.

pyinfra hands ``ssh_paramiko_connect_kwargs`` (group_data/all.py) to paramiko, and paramiko lets the
caller make the transport. That is a supported hook on both sides, so it also works for a bare
``pyinfra inventory.py deploy.py``.

- ``TCP_NODELAY``: paramiko leaves Nagle's algorithm on, and each of a run's many small commands then
  waits for a delayed acknowledgement, about 40 ms.
- keepalive: a build is silent for long, and a router in between forgets silent connections.
- an end to waiting: where a box went away without a word (its power, our network) the kernel sends again
  for 15 minutes, and the deploy stands there silent. Two minutes without an acknowledgement end it; a
  shorter gap is sat out.
"""

from __future__ import annotations

import socket
from typing import Any

from paramiko import Transport

KEEPALIVE_SECONDS = 15
UNANSWERED_SECONDS = 120
# Linux; elsewhere the system's own time is waited out.
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


def prompt_transport(sock: Any, **kwargs: Any) -> Transport:
    """A paramiko transport over ``sock`` that sends at once and stays alive when idle.

    ``sock`` may also be a paramiko channel or a proxy command (ProxyJump, ProxyCommand): those have
    no TCP options and are left as they are.
    """
    if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _USER_TIMEOUT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, UNANSWERED_SECONDS * 1000)
    transport = Transport(sock, **kwargs)
    transport.set_keepalive(KEEPALIVE_SECONDS)
    return transport
