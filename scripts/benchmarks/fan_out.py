"""The least that a Redlock can cost on this machine: its own requests, on bare sockets.

They are made once, in as many flights as the store's, and of the answers nothing is read but that
they have come. What is left is what the servers and the kernel take, which share the processors.
"""

from __future__ import annotations

import select
import socket
import time
import uuid
from collections.abc import Sequence

from celery_dlock.core.state import Claim, Outcome
from celery_dlock.stores.redlock.votes import majority_of
from celery_dlock.stores.redlock.wire import Wire
from scripts.benchmarks.cycles import TTL


class BareFanOut:
    """A cycle over nodes that are raised for *prefix*; the first of *ports* has the queue, and is
    asked last, as the store has to: who is let in then finds that the nodes were told before.
    """

    def __init__(self, ports: Sequence[int], prefix: str) -> None:
        queue, *others = ports
        self._sockets = [socket.create_connection(("127.0.0.1", n)) for n in (*others, queue)]
        self._owing = {sock.fileno(): 0 for sock in self._sockets}
        self._by_number = {sock.fileno(): sock for sock in self._sockets}
        self._poll = select.poll()
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(sock, select.POLLIN)
        wire, claim = Wire(prefix, None), Claim("order:1", "task:0:0", uuid.uuid4().hex, TTL)
        self._first = self._token = time.time_ns() // 1000
        self._enter = wire.enter(claim, None).packed
        self._take = wire.take(claim, 0, self._first).packed
        self._free = wire.free(claim, through=True).packed
        self._leave = self._free + wire.leave(claim, Outcome.OVER, None).packed

    def __call__(self) -> None:
        self._token += 1  # a node refuses one that it knows
        take = self._take.replace(b"%d" % self._first, b"%d" % self._token)
        others = len(self._sockets) - 1
        self._fly([self._enter])
        self._fly([take] * (others + 1))
        self._fly([*[self._free] * others, self._leave], queue=1)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _fly(self, requests: Sequence[bytes], queue: int = 0) -> None:
        """One to each node, until a majority has answered; *queue*: replies more of the last."""
        flying = [sock.fileno() for sock in self._sockets[-len(requests) :]]
        for number, request in zip(flying, requests, strict=True):
            self._by_number[number].sendall(request)
            self._owing[number] += 1
        self._owing[flying[-1]] += queue
        while self._waits(flying) or (queue and self._owing[flying[-1]]):
            for number, _ in self._poll.poll():
                self._owing[number] -= self._by_number[number].recv(65536).count(b"\r\n")

    def _waits(self, flying: Sequence[int]) -> bool:
        answered = sum(self._owing[number] == 0 for number in flying)
        return answered < majority_of(len(flying))
