"""The store on several independent Redis servers: who holds a key is what a majority of them says.

What it does not give: a fencing token that is larger whatever happens. Where more nodes than a
minority forget what they knew there may be two holders, so the guarantee is best effort, and what
must not happen twice is guarded by the fence in the resource.

One node has the queue, and runs the whole machine for it as a single Redis would. That is for
order and for memory of what is finished. When that node is unavailable, tasks that contend are
rescheduled, and exclusion goes on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

from celery_dlock.core.operations import Enter, Leave, Operation
from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    Holder,
    KeyState,
    LeaveVerdict,
    Left,
    NotHeld,
    Renewed,
    RenewVerdict,
    Replaced,
    Run,
    Unknown,
    Waiting,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import (
    BackendOptions,
    DeadMessage,
    Guarantee,
    KeyPage,
    NoteStore,
    Reply,
    Swept,
    Trait,
)
from celery_dlock.stores.redis.listing import walk
from celery_dlock.stores.redis.store import LOOK, RedisBackend
from celery_dlock.stores.redlock import wire
from celery_dlock.stores.redlock.node import Nodes, RedlockNode
from celery_dlock.stores.redlock.quorum import FanOutPool, Quorum, nothing_less
from celery_dlock.stores.redlock.taking import Taking
from celery_dlock.stores.redlock.votes import as_the_nodes_know, held_until, unknown_to_the_queue
from celery_dlock.stores.redlock.wire import ScriptCall

V = TypeVar("V")

_AT_NODE = re.compile(r"n([0-9]{1,2}):([0-9]{1,20})")


class RedlockBackend(NoteStore):
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
        self._pool = PerProcess(self._new_pool)

    def _new_pool(self) -> FanOutPool:
        nodes = [RedlockNode(self._named.connection, options) for options in self._named.options]
        return FanOutPool(nodes, self._calls.greeting())

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redlock://[[user]:password@]host[:port],host[:port],host[:port][/db]``.

        The query takes ``queue=host:port``, which names the node with the queue (the first one
        unless told), and redis-py's connection options, for all nodes alike.
        """
        return cls(Nodes.of(url, options.driver, options.ttl), options)

    def apply(self, operation: Operation[V]) -> Reply[V]:
        return self._reply(operation)

    def _reply(self, operation: Operation[Any]) -> Reply[Any]:
        match operation:
            case Enter():
                return self._enter(operation)
            case Leave():
                return self._leave(operation)
            case _:
                return self._machine.apply(operation)

    def _enter(self, enter: Enter) -> Reply[EnterVerdict]:
        if enter.claim.enqueues:  # it asks the queue for a turn, nobody for the key
            reply = self._machine.apply(enter)
            if not isinstance(reply.verdict, Run):  # which it has already
                return reply
        with self._quorum() as quorum:
            return Taking(quorum, self._calls, enter.claim, enter.message).run()

    def _leave(self, leave: Leave) -> Reply[LeaveVerdict]:
        claim, outcome, message = leave.claim, leave.outcome, leave.message
        with self._quorum() as quorum:
            free = self._calls.free(claim, through=True)
            left = self._calls.leave(claim, outcome, message)
            held = quorum.decides(lambda answer: answer == 1)
            answers = quorum.free(free, claim, left, held)
            answer = answers.queue
            if quorum.asked_again(self._named.queue):
                again = self._calls.leave(replace(claim, again=True), outcome, message)
                answer = quorum.ask_queue(again)
            reply = wire.left(claim.key, answer)
            if reply is None:
                place = self._pool().nodes[self._named.queue].place
                raise BackendUnavailable(
                    f"the queue's node {place} did not hear that task {task_id_of(claim.task)} "
                    f"released {claim.key!r}, and is told again"
                )
            was_there = list(answers.nodes.values())
            unknown = quorum.size - len(was_there)
            gone = isinstance(reply.verdict, NotHeld)
            if gone and was_there.count(1) >= quorum.majority:
                return replace(reply, verdict=Left(reply.verdict.carried))
            if claim.again:  # who does not have it may have released it before
                return reply
            if not gone and quorum.majority > unknown + sum(map(bool, was_there)):
                return replace(reply, verdict=NotHeld(reply.verdict.carried))
            return reply

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        with self._quorum() as quorum:
            replaced = _replaced(quorum, self._calls, [c for c in claims if c.gives_way])
            others = [claim for claim in claims if claim not in replaced]
            verdicts = _renewed(quorum, self._calls, others) if others else []
            renewed = dict(zip(others, verdicts, strict=True))
            return [replaced.get(claim) or renewed[claim] for claim in claims]

    def sweep(self, limit: int = 100) -> Swept:
        return self._machine.sweep(limit)

    def now(self) -> int:
        """By the node with the queue; each other one has a clock of its own."""
        return self._machine.now()

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return self._machine.parked(task_ids)

    def message(self, key: str, task: str) -> bytes | None:
        return self._machine.message(key, task)

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        return self._machine.dead(limit)

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        return self._machine.dead_of(task_ids)

    def count_dead(self) -> int:
        return self._machine.count_dead()

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """The node with the queue keeps the notes; while it is unavailable there are none."""
        return self._machine.note(key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        return self._machine.notes(key)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        """The node with the queue keeps what is put; while it is unavailable nothing is."""
        return self._machine.swap(name, was, becomes, stays)

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        return self._machine.swapped(limit)

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        """The queue's state of *key*, its holders with the tokens that the nodes gave them."""
        state = self._machine.peek(key, limit)
        with self._quorum() as quorum:
            answers = quorum.ask(self._calls.look(key), nothing_less)
        looks = [look for answer in answers.nodes.values() if (look := wire.look(answer))]
        of_nodes = [holder for look in looks for holder in look.holders]
        holders = tuple(as_the_nodes_know(holder, of_nodes) for holder in state.holders)
        return replace(state, holders=holders)

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        return self._machine.position(key, task)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """The queue's keys, and then those that only nodes know to be held.

        One of the latter that the queue comes to know meanwhile may be left out. While the queue's
        node is unavailable there is no list.
        """
        if waiting:
            return self._machine.keys(cursor, limit, waiting=True)
        position = _at_node(cursor, len(self._named.options))
        if position is None:
            page = self._machine.keys(cursor[1:], limit)
            # After the last of the queue's keys comes the first node.
            return replace(page, cursor="n0:0" if page.cursor is None else f"q{page.cursor}")
        with self._quorum() as quorum:
            page = _of_the_nodes(quorum, self._calls, self._prefix, position, limit)
        return replace(page, keys=tuple(self._missed(page.keys)))

    def _missed(self, keys: Sequence[str]) -> list[str]:
        """Those of *keys* that the queue does not know; one that it cannot read it has told of."""
        try:
            states = self._machine.look(keys)
        except BackendUnavailable:
            self._machine.now()  # raises if it is unavailable
        else:
            return [key for key, state in zip(keys, states, strict=True) if state == KeyState()]
        middle = len(keys) // 2
        return self._missed(keys[:middle]) + self._missed(keys[middle:]) if middle else []

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """The queue's state of each, with all holders that a majority of the nodes may know.

        A holder that the queue alone knows is told, too: it keeps others waiting until it expires.
        """
        states = self._machine.look(keys)
        complete: list[KeyState] = []
        with self._quorum() as quorum:
            for start in range(0, len(keys), LOOK):
                some, stand = keys[start : start + LOOK], states[start : start + LOOK]
                complete += _with_all_holders(quorum, self._calls, some, stand)
        return complete

    def close(self) -> None:
        self._pool().close()
        self._machine.close()

    @contextmanager
    def _quorum(self) -> Iterator[Quorum]:
        """The nodes, on connections of this process."""
        pool = self._pool()
        fan_out = pool.take()
        try:
            yield Quorum(fan_out, pool.nodes, self._named.queue)
        finally:
            pool.put(fan_out)


def _replaced(quorum: Quorum, calls: wire.Wire, claims: Sequence[Claim]) -> dict[Claim, Replaced]:
    """Which of *claims* are asked to give way: the queue alone knows, and no node renews those."""
    newer = wire.replaced(quorum.ask_queue(calls.keep(claims)), len(claims)) if claims else []
    return {claim: Replaced(by) for claim, by in zip(claims, newer, strict=True) if by}


def _renewed(quorum: Quorum, calls: wire.Wire, claims: Sequence[Claim]) -> list[RenewVerdict]:
    """One verdict a claim; a claim that some nodes do not know is held there, too, from now on.

    Without that a lease that lasts would lose its majority when the nodes are restarted in turn.
    Nobody waits for a renewal, so every node is heard.
    """
    answers = quorum.ask(calls.renew(claims), nothing_less, calls.keep(claims))
    replies = {
        number: wire.renewed(answer, len(claims)) for number, answer in answers.nodes.items()
    }
    rows = {number: row for number, row in replies.items() if row is not None}
    verdicts: list[RenewVerdict] = []
    missing: dict[int, list[ScriptCall]] = {}
    for n, claim in enumerate(claims):
        kept = [extended for row in rows.values() if (extended := row[n]) is not None]
        if len(kept) >= quorum.majority:
            verdicts.append(Renewed(held_until([term.expires for term in kept], quorum.size)))
            latest = max(kept, key=lambda term: term.token)
            for number, row in rows.items():
                if row[n] is None:
                    again = calls.take(claim, latest.slot, latest.token, renewed=True)
                    missing.setdefault(number, []).append(again)
        elif len(kept) + quorum.size - len(rows) < quorum.majority:
            verdicts.append(NotHeld())
        else:
            verdicts.append(Unknown())
    if all(isinstance(verdict, Unknown) for verdict in verdicts):
        raise BackendUnavailable(f"no majority of {quorum.size} Redis nodes: {quorum.trouble()}")
    if missing:
        quorum.tell(missing)
    return verdicts


def _at_node(cursor: str, nodes: int) -> tuple[int, int] | None:
    """At which node to go on, and where; ``None`` while it is the queue that tells.

    Raises :exc:`ValueError` for what no page has given.
    """
    if not cursor or cursor.startswith("q"):
        return None
    match = _AT_NODE.fullmatch(cursor)
    if match is None or int(match[1]) >= nodes or int(match[2]) >= 2**64:
        raise ValueError("this is not a cursor of a list of keys")
    return int(match[1]), int(match[2])


def _of_the_nodes(
    quorum: Quorum, calls: wire.Wire, prefix: str, position: tuple[int, int], limit: int
) -> KeyPage:
    """Keys that are held at one node. One that is unavailable is left out: a majority is enough.

    A claim that came while the queue's node was unavailable is known to the other nodes alone, and
    so are all after that node has forgotten.
    """
    number, at = position

    def step(at: int, count: int) -> Sequence[Any]:
        reply = quorum.tell({number: [calls.held(at, count)]}).get(number, [None])[0]
        return reply if isinstance(reply, list) else (0, ())

    keys, at = walk(step, prefix, at, limit)
    after = (number, at) if at else (number + 1, 0)
    cursor = None if after[0] == quorum.size else f"n{after[0]}:{after[1]}"
    return KeyPage(tuple(keys), cursor)


def _with_all_holders(
    quorum: Quorum, calls: wire.Wire, keys: Sequence[str], states: Sequence[KeyState]
) -> list[KeyState]:
    """*states* of *keys*, which are what the queue says, with the holders that the nodes know."""
    answers = quorum.ask(calls.holders(keys), nothing_less)
    replies = [wire.holders(answer, len(keys)) for answer in answers.nodes.values()]
    of_nodes = [reply for reply in replies if reply is not None]
    return [
        _together(state, [reply[n] for reply in of_nodes], quorum.size)
        for n, state in enumerate(states)
    ]


def _together(state: KeyState, of_nodes: Sequence[tuple[Holder, ...]], nodes: int) -> KeyState:
    """*state* as the queue has it, with what each of some nodes knows of its holders."""
    every = [holder for of_node in of_nodes for holder in of_node]
    holders = tuple(as_the_nodes_know(holder, every) for holder in state.holders)
    return replace(state, holders=holders + unknown_to_the_queue(holders, of_nodes, nodes))
