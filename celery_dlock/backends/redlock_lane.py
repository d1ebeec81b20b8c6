"""All nodes asked at once: one flight there and back, however many they are.

The requests go out on one line a node, and whoever answers first is heard first. There is no thread
and no loop of its own: it waits in ``select`` as others do, so gevent and eventlet switch there.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from celery_dlock.backends.redlock_line import Line
from celery_dlock.backends.redlock_node import BROKEN, Node
from celery_dlock.backends.redlock_resp import Call

Requests = Mapping[int, Sequence[Call]]
Replies = dict[int, list[Any]]

#: Told the replies so far, by node, and which nodes may still answer: whether that is enough.
Enough = Callable[[Replies, Collection[int]], bool]


def everybody(replies: Replies, pending: Collection[int]) -> bool:
    """Enough only when nobody is left to answer."""
    return False


class Lane:
    """One line to each node, for one caller at a time."""

    def __init__(self, nodes: Sequence[Node], greeting: Sequence[bytes]) -> None:
        self._lines = [Line(node, greeting) for node in nodes]
        self._new: set[int] = set()
        self._patience = max(node.timeout for node in nodes)

    def fly(self, requests: Requests, enough: Enough = everybody) -> Replies:
        """Send *requests*, by node and in this order; the replies of those who answered in time.

        It returns as soon as *enough* says so. A request without a reply may have been served.
        """
        try:
            return self._fly(requests, enough)
        except BaseException:  # a time limit strikes anywhere: who knows what is on the lines
            self.close()
            raise

    def reaches(self, number: int) -> bool:
        """Whether what was sent to this node last is on its way, or there."""
        return self._lines[number].is_open

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _fly(self, requests: Requests, enough: Enough) -> Replies:
        self._new.clear()
        pending: dict[int, int] = {}  # the number of each node that may answer, by its descriptor
        for number, calls in requests.items():
            if self._send(number, calls):
                pending[self._lines[number].descriptor] = number
        replies: Replies = {}
        until = time.monotonic() + self._patience
        while pending and not enough(replies, pending.values()):
            readable = _readable(pending, until - time.monotonic())
            for descriptor in readable:
                number = pending.pop(descriptor)
                found = self._receive(number, requests[number])
                if found is not None:
                    replies[number] = found
                elif self._lines[number].is_open:
                    pending[self._lines[number].descriptor] = number  # maybe a new one
            if not readable:
                for number in pending.values():
                    self._give_up(number, TimeoutError())
                break
        return replies

    def _send(self, number: int, calls: Sequence[Call]) -> bool:
        line = self._lines[number]
        if line.node.is_away():
            return False
        try:
            if line.is_open:
                line.send(calls)
                return True
        except TimeoutError as exc:
            return self._give_up(number, exc)
        except BROKEN:  # it may have been closed while it idled
            line.close()
        return self._open(number, calls)

    def _open(self, number: int, calls: Sequence[Call]) -> bool:
        line = self._lines[number]
        self._new.add(number)
        try:
            line.open()
            line.send(calls)
        except BROKEN as exc:
            return self._give_up(number, exc)
        return True

    def _receive(self, number: int, calls: Sequence[Call]) -> list[Any] | None:
        """The replies once they are complete; without any, and with its line closed, it failed."""
        line = self._lines[number]
        try:
            found = line.receive()
        except BROKEN as exc:
            line.close()
            if number in self._new:
                self._give_up(number, exc)
            else:
                self._open(number, calls)
            return None
        return found

    def _give_up(self, number: int, error: Exception) -> bool:
        self._lines[number].close()
        self._lines[number].node.failed(error)
        return False


class Lanes:
    """The lanes of one process, as many as were ever in use at once; the last used comes first."""

    def __init__(self, nodes: Sequence[Node], greeting: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._greeting = greeting
        self._free: deque[Lane] = deque()

    def take(self) -> Lane:
        """A lane of the caller's own, until it is put back."""
        try:
            return self._free.pop()
        except IndexError:
            return Lane(self._nodes, self._greeting)

    def put(self, lane: Lane) -> None:
        self._free.append(lane)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


def _readable(descriptors: Collection[int], seconds: float) -> Sequence[int]:
    """Those of *descriptors* from which something can be read."""
    seconds = max(0.0, seconds)
    if not hasattr(select, "poll"):  # eventlet takes it away
        return select.select(list(descriptors), [], [], seconds)[0]
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [each for each, _ in poll.poll(seconds * 1000)]
