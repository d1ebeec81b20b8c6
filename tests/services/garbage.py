"""A server that answers every request with the same bytes, as a wrong port or a proxy does."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Serve on a loopback port, which the block gets; an empty *reply* hangs up at once."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while reply and self.request.recv(65536):
                self.request.sendall(reply)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """The client may hang up first."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
