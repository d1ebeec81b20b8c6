"""The store on several independent Redis servers: who holds a key is what a majority of them says.

What it does not give: a fencing token that is larger whatever happens. Where more nodes than a
minority forget what they knew there may be two holders, so the guarantee is best effort, and what
must not happen twice is guarded by the fence in the resource.

One node has the queue, and runs the whole machine for it as a single Redis would. That is for
order and for memory of what is finished. When that node is away tasks that contend are rescheduled,
and exclusion goes on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Self

from celery_dlock.backends import redlock_listing as listing
from celery_dlock.backends import redlock_wire as wire
from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    Guarantee,
    KeyPage,
    LockBackend,
    Reply,
    Swept,
    Trait,
)
from celery_dlock.backends.redis import LOOK, RedisBackend
from celery_dlock.backends.redlock_council import Council, nothing_less
from celery_dlock.backends.redlock_lane import Lanes
from celery_dlock.backends.redlock_node import Node
from celery_dlock.backends.redlock_renewal import renew
from celery_dlock.backends.redlock_taking import Taking
from celery_dlock.backends.redlock_url import Nodes
from celery_dlock.backends.redlock_votes import as_the_nodes_know
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Left,
    Lost,
    Outcome,
    RenewVerdict,
    Run,
    Wait,
)
from celery_dlock.errors import BackendUnavailable


class RedlockBackend(LockBackend):
    """All keys of three or more Redis servers that know nothing of each other."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    largest_message: ClassVar[int] = RedisBackend.largest_message

    def __init__(self, named: Nodes, options: BackendOptions) -> None:
        self._named = named
        self._prefix = options.prefix
        self._calls = wire.Wire(options.prefix, options.clock)
        self._machine = RedisBackend(lambda: named.session(options.driver), options)
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._nodes = [Node(self._named.connection, each) for each in self._named.options]
        self._lanes = Lanes(self._nodes, self._calls.greeting())

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redlock://[[user]:password@]host[:port],host[:port],host[:port][/db]``.

        The query takes ``queue=host:port``, which names the node with the queue (the first one
        unless told), and redis-py's connection options, for all nodes alike.
        """
        return cls(Nodes.of(url, options.driver), options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        if claim.wait is Wait.ENQUEUE:  # it asks the queue for a turn, and nobody for the key
            told = self._machine.enter(claim, message)
            if not isinstance(told.verdict, Run):  # which it has already
                return told
        with self._council() as council:
            return Taking(council, self._calls, claim, message).run()

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._council() as council:
            free = self._calls.free(claim, through=True)
            left = self._calls.leave(claim, outcome, message)
            held = council.decides(lambda answer: answer == 1)
            answers = council.free(free, claim, left, held)
            told = wire.left(claim.key, answers.queue)
            if told is None:
                where = self._nodes[self._named.queue].place
                raise BackendUnavailable(
                    f"the queue's node {where} did not hear that {claim.task} left {claim.key}"
                )
            was_there = list(answers.nodes.values())
            unknown = council.size - len(was_there)
            gone = isinstance(told.verdict, Lost)
            if gone and was_there.count(1) >= council.majority:
                return replace(told, verdict=Left(told.verdict.carried))
            if not gone and council.majority > unknown + sum(map(bool, was_there)):
                return replace(told, verdict=Lost(told.verdict.carried))
            return told

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        with self._council() as council:
            return renew(council, self._calls, claims)

    def reap(self, key: str) -> Reply[None]:
        return self._machine.reap(key)

    def sweep(self, limit: int = 100) -> Swept:
        return self._machine.sweep(limit)

    def now(self) -> int:
        """By the node with the queue; each other one has a clock of its own."""
        return self._machine.now()

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return self._machine.parked(task_ids)

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._machine.cancel(key, task)

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._machine.bury(key, task, cause)

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._machine.hand_back(key, task)

    def dead(self, limit: int = 100) -> list[Burial]:
        return self._machine.dead(limit)

    def replay(self, key: str, task: str) -> Reply[bool]:
        return self._machine.replay(key, task)

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """The node with the queue keeps the notes; while it is away there are none to be had."""
        return self._machine.note(key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        return self._machine.notes(key)

    def peek(self, key: str) -> KeyState:
        """The queue's state of *key*, its holders with the tokens that the nodes gave them."""
        state = self._machine.peek(key)
        with self._council() as council:
            answers = council.ask(self._calls.look(key), nothing_less)
        looks = [look for answer in answers.nodes.values() if (look := wire.look(answer))]
        known = [holder for look in looks for holder in look.holders]
        holders = tuple(as_the_nodes_know(holder, known) for holder in state.holders)
        return replace(state, holders=holders)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """The queue's keys, and then those that only nodes know to be held.

        One of the latter that the queue comes to know meanwhile may be left out. While the queue's
        node is away there is no list.
        """
        if waiting:
            return self._machine.keys(cursor, limit, waiting=True)
        where = listing.at_node(cursor, len(self._nodes))
        if where is None:
            return listing.of_the_queue(self._machine.keys(cursor[1:], limit))
        with self._council() as council:
            page = listing.of_the_nodes(council, self._calls, self._prefix, where, limit)
        states = zip(page.keys, self._machine.look(page.keys), strict=True)
        return replace(page, keys=tuple(key for key, state in states if state == KeyState()))

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """The queue's state of each, with all holders that a majority of the nodes may know.

        A holder that the queue alone knows is told, too: it keeps others waiting until it lapses.
        """
        states = self._machine.look(keys)
        found: list[KeyState] = []
        with self._council() as council:
            for start in range(0, len(keys), LOOK):
                some, stand = keys[start : start + LOOK], states[start : start + LOOK]
                found += listing.with_all_holders(council, self._calls, some, stand)
        return found

    def close(self) -> None:
        self._lanes.close()
        self._machine.close()

    @contextmanager
    def _council(self) -> Iterator[Council]:
        """The nodes, on connections of this process."""
        if self._pid != os.getpid():
            self._open()
        lanes = self._lanes
        lane = lanes.take()
        try:
            yield Council(lane, self._nodes, self._named.queue)
        finally:
            lanes.put(lane)
