"""The nodes of a Redlock together: one question to all of them, and the queue's to one.

The queue is on one of the nodes, so what is asked of it flies along. That request is the last one
to go out: whoever then hears of it finds the nodes told before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from celery_dlock.backends.redlock_lane import Lane, Replies, Requests
from celery_dlock.backends.redlock_node import Node
from celery_dlock.backends.redlock_resp import Call
from celery_dlock.backends.redlock_votes import decided, majority_of
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim

#: Told the replies so far, each first in a list, and how many nodes may still give one: whether
#: that is enough.
EnoughHeard = Callable[[Replies, int], bool]


@dataclass(frozen=True, slots=True)
class Answers:
    """By node; ``queue`` is ``None`` when it was not asked or did not answer."""

    nodes: dict[int, Any]
    queue: Any = None


def whatever(replies: Replies, pending: int) -> bool:
    """Enough at once: it is said, and what is answered does not matter."""
    return True


def nothing_less(replies: Replies, pending: int) -> bool:
    """Not enough before all have answered that will."""
    return False


class Council:
    """For one operation, over one lane."""

    def __init__(self, lane: Lane, nodes: Sequence[Node], queue: int) -> None:
        self._lane = lane
        self._nodes = nodes
        self._queue = queue
        self.size = len(nodes)
        self.majority = majority_of(self.size)

    def ask(self, call: Call, enough: EnoughHeard, queue: Call | None = None) -> Answers:
        """Ask every node *call*, and the queue *queue*, whose answer is waited for."""
        requests = {number: [call] for number in range(self.size) if number != self._queue}
        requests[self._queue] = [call] if queue is None else [call, queue]

        def heard(replies: Replies, pending: Collection[int]) -> bool:
            if queue is not None and self._queue in pending:
                return False
            return enough(replies, len(pending))

        replies = self._lane.fly(requests, heard)
        answer = replies[self._queue][1] if queue is not None and self._queue in replies else None
        return Answers({number: found[0] for number, found in replies.items()}, answer)

    def ask_queue(self, call: Call) -> Any:
        """The queue's answer; ``None`` when it gives none."""
        replies = self._lane.fly({self._queue: [call]})
        return replies[self._queue][0] if self._queue in replies else None

    def tell(self, calls: Requests) -> Replies:
        """Tell some nodes, each something else, and hear all of them."""
        return self._lane.fly(calls)

    def free(
        self, call: Call, claim: Claim, queue: Call | None, enough: EnoughHeard | None = None
    ) -> Answers:
        """Say *call*, that *claim* has left, to all; to who cannot be reached when it is back.

        Unless told what is *enough*, that a majority has heard it.
        """
        answers = self.ask(call, enough or self._heard_by_most, queue)
        for number, node in enumerate(self._nodes):
            if number not in answers.nodes and not self._lane.reaches(number):
                node.owe(call.packed, (claim.ttl + claim.lock_delay) / SECOND)
        return answers

    def decides(self, agrees: Callable[[Any], bool]) -> EnoughHeard:
        """Enough when it is known whether a majority *agrees*, by each node's first reply."""

        def enough(replies: Replies, pending: int) -> bool:
            yes = sum([agrees(found[0]) for found in replies.values()])
            return decided(yes, pending, self.size)

        return enough

    def _heard_by_most(self, replies: Replies, pending: int) -> bool:
        return len(replies) >= self.majority

    def somebody_forgot(self) -> bool:
        """Whether a node was met that has to be raised; it is said once."""
        found = [node for node in self._nodes if node.forgot]
        for node in found:
            node.forgot = False
        return bool(found)

    def trouble(self) -> str:
        """What is wrong with the nodes that are left alone."""
        found = [f"{node.place}: {node.trouble}" for node in self._nodes if node.is_away()]
        return "; ".join(found) or "they have not been raised yet, or forgot what they knew"
