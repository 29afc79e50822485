"""Free ports and those who hold one."""

from __future__ import annotations

import socket

import pytest

from specserve.hardware.host import free_port, holder


def bound(port: int = 0) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    return server


def test_a_server_that_is_bound_but_still_loads_holds_its_port_too() -> None:
    with bound() as server:
        found = holder("127.0.0.1", server.getsockname()[1])
    assert found is not None
    assert "cannot be seen" in found


def test_connections_that_were_just_closed_do_not_hold_the_port() -> None:
    with bound() as server:
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = server.accept()
        connection.close()  # the side that closes first keeps TIME_WAIT
        client.recv(1)
        client.close()
    assert holder("127.0.0.1", port) is None


def test_ipv6_addresses_are_understood() -> None:
    try:
        port = free_port("::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    assert holder("[::1]", port) is None
