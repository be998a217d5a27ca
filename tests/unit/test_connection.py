"""Sockets of SSH connections: small packets at once, idle ones kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gb10.connection import KEEPALIVE_SECONDS, UNANSWERED_SECONDS, prompt_transport


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with client, peer:
            yield client, peer


def test_sends_small_packets_at_once(wire: tuple[socket.socket, socket.socket]) -> None:
    client, _ = wire
    assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
    transport = prompt_transport(client)
    assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert transport.sock is client


def test_keeps_idle_connections(wire: tuple[socket.socket, socket.socket]) -> None:
    transport = prompt_transport(wire[0])
    # paramiko keeps it as a private pair of interval and callback.
    assert transport.packetizer._Packetizer__keepalive_interval == KEEPALIVE_SECONDS


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_a_box_that_went_away_is_not_waited_for_without_end(
    wire: tuple[socket.socket, socket.socket],
) -> None:
    prompt_transport(wire[0])
    option = wire[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == UNANSWERED_SECONDS * 1000
    # Only data that nobody acknowledges counts: the keepalive sends some.
    assert KEEPALIVE_SECONDS < UNANSWERED_SECONDS


def test_a_proxy_is_no_tcp_socket() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert prompt_transport(near).sock is near


def test_group_data_hands_it_to_paramiko() -> None:
    from tests.unit.boxes import raw_data

    assert raw_data()["ssh_paramiko_connect_kwargs"] == {"transport_factory": prompt_transport}
