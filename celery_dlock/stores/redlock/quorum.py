"""The quorum: one question to all nodes of a Redlock, and the queue's to one.

All are asked at once, in one flight there and back, however many they are. The requests go out on
one connection a node, and the first answer is heard first. There is no thread and no loop of
its own: it waits in ``select`` as others do, so gevent and eventlet switch there.

The queue is on one of the nodes, so what is asked of it flies along. That request is the last one
to go out: a claim that the queue then lets in finds that the nodes were told before.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim
from celery_dlock.stores.redlock.connection import NodeConnection
from celery_dlock.stores.redlock.node import BROKEN, RedlockNode
from celery_dlock.stores.redlock.votes import decided, majority_of
from celery_dlock.stores.redlock.wire import ScriptCall

Requests = Mapping[int, Sequence[ScriptCall]]
Replies = dict[int, list[Any]]

#: Told the replies so far, by node, and which nodes may still answer: whether that is enough.
Enough = Callable[[Replies, Collection[int]], bool]


def everybody(replies: Replies, pending: Collection[int]) -> bool:
    """Enough only when nobody is left to answer."""
    return False


class FanOut:
    """One connection to each node, for one caller at a time."""

    def __init__(self, nodes: Sequence[RedlockNode], greeting: Sequence[bytes]) -> None:
        self._connections = [NodeConnection(node, greeting) for node in nodes]
        self._new: set[int] = set()
        self._again: set[int] = set()
        self._patience = max(node.timeout for node in nodes)

    def fly(self, requests: Requests, enough: Enough = everybody) -> Replies:
        """Send *requests*, by node and in this order; the replies of those who answered in time.

        It returns as soon as *enough* says so. A request without a reply may have been served.
        """
        try:
            return self._fly(requests, enough)
        except BaseException:  # a time limit strikes anywhere: who knows what is on the connections
            self.close()
            raise

    def reaches(self, number: int) -> bool:
        """Whether what was sent to this node last is on its way, or there."""
        return self._connections[number].is_open

    def asked_again(self, number: int) -> bool:
        """Whether this node may have served twice what was sent to it last."""
        return number in self._again

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _fly(self, requests: Requests, enough: Enough) -> Replies:
        self._new.clear()
        self._again.clear()
        pending: dict[int, int] = {}  # the number of each node that may answer, by its descriptor
        for number, calls in requests.items():
            if self._send(number, calls):
                pending[self._connections[number].descriptor] = number
        replies: Replies = {}
        until = time.monotonic() + self._patience
        while pending and not enough(replies, pending.values()):
            readable = _readable(pending, until - time.monotonic())
            for descriptor in readable:
                if descriptor not in pending:  # eventlet may wake a select by one that has ended
                    continue
                number = pending.pop(descriptor)
                answer = self._receive(number, requests[number])
                if answer is not None:
                    replies[number] = answer
                elif self._connections[number].is_open:
                    pending[self._connections[number].descriptor] = number  # maybe a new one
            if not readable:
                for number in pending.values():
                    self._give_up(number, TimeoutError())
                break
        return replies

    def _send(self, number: int, calls: Sequence[ScriptCall]) -> bool:
        connection = self._connections[number]
        if connection.node.is_unavailable():
            return False
        try:
            if connection.is_open:
                connection.send(calls)
                return True
        except TimeoutError as exc:
            return self._give_up(number, exc)
        except BROKEN:  # it may have been closed while it idled
            connection.close()
            self._again.add(number)
        return self._open(number, calls)

    def _open(self, number: int, calls: Sequence[ScriptCall]) -> bool:
        connection = self._connections[number]
        self._new.add(number)
        try:
            connection.open()
            connection.send(calls)
        except BROKEN as exc:
            return self._give_up(number, exc)
        return True

    def _receive(self, number: int, calls: Sequence[ScriptCall]) -> list[Any] | None:
        """The replies once they are complete; without any, and its connection closed, it failed."""
        connection = self._connections[number]
        try:
            answer = connection.receive()
        except BROKEN as exc:
            connection.close()
            if number in self._new:
                self._give_up(number, exc)
            else:
                self._again.add(number)
                self._open(number, calls)
            return None
        return answer

    def _give_up(self, number: int, error: Exception) -> bool:
        self._connections[number].close()
        self._connections[number].node.failed(error)
        return False


class FanOutPool:
    """The fan-outs of one process, as many as were ever in use at once, the last used first."""

    def __init__(self, nodes: Sequence[RedlockNode], greeting: Sequence[bytes]) -> None:
        self.nodes = nodes
        self._greeting = greeting
        self._free: deque[FanOut] = deque()

    def take(self) -> FanOut:
        """A fan-out of the caller's own, until it is put back."""
        try:
            return self._free.pop()
        except IndexError:
            return FanOut(self.nodes, self._greeting)

    def put(self, fan_out: FanOut) -> None:
        self._free.append(fan_out)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


def _readable(descriptors: Collection[int], seconds: float) -> Sequence[int]:
    """Those of *descriptors* from which something can be read."""
    seconds = max(0.0, seconds)
    if not hasattr(select, "poll"):  # eventlet takes it away
        return select.select(list(descriptors), [], [], seconds)[0]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]


#: Told the replies so far, each first in a list, and how many nodes may still give one: whether
#: that is enough.
EnoughHeard = Callable[[Replies, int], bool]


@dataclass(frozen=True, slots=True)
class Answers:
    """By node; ``queue`` is ``None`` when it was not asked or did not answer."""

    nodes: dict[int, Any]
    queue: Any = None


def whatever(replies: Replies, pending: int) -> bool:
    """Enough at once: the request is sent, and no reply is waited for."""
    return True


def nothing_less(replies: Replies, pending: int) -> bool:
    """Not enough before all nodes have answered, or can no longer do so."""
    return False


class Quorum:
    """The nodes and their majority, for one operation, over one fan-out."""

    def __init__(self, fan_out: FanOut, nodes: Sequence[RedlockNode], queue: int) -> None:
        self._fan_out = fan_out
        self._nodes = nodes
        self._queue = queue
        self.size = len(nodes)
        self.majority = majority_of(self.size)

    def ask(
        self, call: ScriptCall, enough: EnoughHeard, queue: ScriptCall | None = None
    ) -> Answers:
        """Ask every node *call*, and the queue *queue*, whose answer is waited for."""
        requests = {number: [call] for number in range(self.size) if number != self._queue}
        requests[self._queue] = [call] if queue is None else [call, queue]

        def heard(replies: Replies, pending: Collection[int]) -> bool:
            if queue is not None and self._queue in pending:
                return False
            return enough(replies, len(pending))

        replies = self._fan_out.fly(requests, heard)
        answer = replies[self._queue][1] if queue is not None and self._queue in replies else None
        return Answers({number: of_node[0] for number, of_node in replies.items()}, answer)

    def asked_again(self, number: int) -> bool:
        """Whether this node may have served twice what it was asked last."""
        return self._fan_out.asked_again(number)

    def ask_queue(self, call: ScriptCall) -> Any:
        """The queue's answer; ``None`` when it gives none."""
        replies = self._fan_out.fly({self._queue: [call]})
        return replies[self._queue][0] if self._queue in replies else None

    def tell(self, calls: Requests) -> Replies:
        """Tell some nodes, each something else, and hear all of them."""
        return self._fan_out.fly(calls)

    def free(
        self,
        call: ScriptCall,
        claim: Claim,
        queue: ScriptCall | None,
        enough: EnoughHeard | None = None,
    ) -> Answers:
        """Tell all nodes by *call* that *claim* has left; an unreachable one when it is back.

        It waits until a majority has heard it, or for what is *enough*. A node that was asked twice
        and has nothing has said nothing: it may have released the key at the first time.
        """
        answers = self.ask(call, enough or self._heard_by_most, queue)
        for number, node in enumerate(self._nodes):
            if number not in answers.nodes and not self._fan_out.reaches(number):
                node.owe(call.packed, claim.ttl / SECOND)
        nodes = {n: had for n, had in answers.nodes.items() if had or not self.asked_again(n)}
        return Answers(nodes, answers.queue)

    def decides(self, agrees: Callable[[Any], bool]) -> EnoughHeard:
        """Enough when it is known whether a majority *agrees*, by each node's first reply."""

        def enough(replies: Replies, pending: int) -> bool:
            yes = sum([agrees(of_node[0]) for of_node in replies.values()])
            return decided(yes, pending, self.size)

        return enough

    def _heard_by_most(self, replies: Replies, pending: int) -> bool:
        return len(replies) >= self.majority

    def somebody_forgot(self) -> bool:
        """Whether a node has to be told what the others know; reported once."""
        forgetful = [node for node in self._nodes if node.forgot]
        for node in forgetful:
            node.forgot = False
        return bool(forgetful)

    def trouble(
        self, otherwise: str = "they have not been initialized yet, or have lost their data"
    ) -> str:
        """What is wrong with the nodes that are not asked, or *otherwise* with those that are."""
        troubles = [
            f"{node.place}: {node.trouble}" for node in self._nodes if node.is_unavailable()
        ]
        return "; ".join(troubles) or otherwise
