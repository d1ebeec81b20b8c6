"""What the proxy does in between is what its two ends would see without it."""

from __future__ import annotations

import socket

from tests.services.proxy import proxy_to


def test_a_server_hears_of_a_client_that_is_gone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxy_to(listener.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        listener.settimeout(10)
        server, _ = listener.accept()
        with server:
            server.settimeout(10)
            client.sendall(b"hello")
            assert server.recv(5) == b"hello"

            client.close()

            assert server.recv(1) == b""
