"""A TCP proxy between a client and a server that loses replies when the test says so.

The request has then reached the server, which has done what it was asked; the client sees its
connection end. ``nonsense`` answers in the server's place; of one that ``is_mute`` no answer comes
back, and connections stay; ``delay`` is how many seconds an answer takes. ``turns`` counts the
requests that came after an answer, or first on a connection: the round trips. A request in pieces
counts once if each ``ends`` alike.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Matches = Callable[[bytes], bool]


class Proxy:
    """Forwards to *port* on loopback, the ``target``; ``port`` is where it listens, *at* or any."""

    def __init__(self, port: int, at: int = 0) -> None:
        self.nonsense: bytes | None = None
        self.is_mute = False
        self.delay = 0.0
        self.turns = 0
        self.ends = b""
        self.lost: list[float] = []  # when, on the monotonic clock
        self.target = port
        self._mutex = threading.Lock()
        self._to_lose = 0
        self._matches: Matches = lambda request: True
        self._listener = socket.create_server(("127.0.0.1", at))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def lose_replies(self, count: int, matches: Matches) -> None:
        """Lose the replies to the next *count* requests that *matches*."""
        with self._mutex:
            self._to_lose, self._matches = count, matches

    def cut(self) -> None:
        """End every connection; new ones are taken."""
        open_now, self._open = self._open, []
        for each in open_now:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Accept until closed; each connection in a thread of its own."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._converse, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _converse(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            nonsense = self.nonsense
            if nonsense is not None:
                client.recv(65536)
                client.sendall(nonsense)
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                self._open.append(server)
                reply_is_lost, answered = threading.Event(), threading.Event()
                answered.set()
                args = (server, client, reply_is_lost, answered)
                threading.Thread(target=self._replies, args=args, daemon=True).start()
                try:
                    while request := client.recv(65536):
                        if answered.is_set() and request.endswith(self.ends):
                            answered.clear()
                            self.turns += 1
                        if self._is_to_be_lost(request):
                            reply_is_lost.set()
                        server.sendall(request)
                finally:
                    # Not by a close, which tells nobody while the other thread reads from it
                    with suppress(OSError):
                        server.shutdown(socket.SHUT_RDWR)

    def _replies(
        self,
        server: socket.socket,
        client: socket.socket,
        reply_is_lost: threading.Event,
        answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while reply := server.recv(65536):
                if reply_is_lost.is_set():
                    break
                answered.set()
                time.sleep(self.delay)
                if not self.is_mute:
                    client.sendall(reply)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _is_to_be_lost(self, request: bytes) -> bool:
        with self._mutex:
            if self._to_lose == 0 or not self._matches(request):
                return False
            self._to_lose -= 1
            self.lost.append(time.monotonic())
            return True


@contextmanager
def proxy_to(port: int, at: int = 0) -> Iterator[Proxy]:
    """A proxy that serves for the time of the block."""
    proxy = Proxy(port, at)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
        proxy.cut()  # who was taken in the last moment
