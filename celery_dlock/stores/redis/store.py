"""The store on Redis: each operation is one script, one round trip, applied whole or not at all.

What it does not give: safety against loss of data. A server that restarts without its last writes,
or a replica promoted too early, does not know the holder and lets a second one in; its token is
larger all the same as long as the server's clock does not step back over the outage. What must
not happen twice is guarded by the fence in the resource, with this store as with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Self, TypeVar

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Enter, Operation
from celery_dlock.core.state import Claim, KeyState, Outcome, RenewVerdict, Waiting
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import (
    BackendOptions,
    Copies,
    DeadMessage,
    Guarantee,
    KeyPage,
    NoteStore,
    Reply,
    Swept,
    Trait,
    by_age,
)
from celery_dlock.stores.redis import listing, scripts, wire
from celery_dlock.stores.redis.client import RedisSession, TooFewCopies, checked, session_of
from celery_dlock.stores.redis.scripts import Command
from celery_dlock.stores.unreadable import NONSENSE, unreadable

V = TypeVar("V")

#: So many keys, and so many entries of a queue, are looked at by one script.
LOOK, PEEK = 100, 1000


class RedisBackend(NoteStore):
    """All keys of one Redis server, version 6.2 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.MONOTONE
    largest_message: ClassVar[int] = 256 * 2**20  # half of what a server takes by default
    replicates: ClassVar[bool] = True

    def __init__(self, connect: Callable[[], RedisSession], options: BackendOptions) -> None:
        self._session = PerProcess(connect)  # within it, errors are translated
        self._prefix = options.prefix
        self._indexes = wire.indexes(options.prefix)
        self._clock = options.clock
        #: Empty for the server's own time, which is what counts outside tests.
        self._now: Callable[[], Any] = options.clock or bytes
        self._copies = options.copies
        self._session()  # what is wrong with the URL shows here

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` the same with TLS, or
        ``redis+unix:///path/to.sock[?db=n]``; the query takes redis-py's connection options.
        """
        return cls(lambda: session_of(url, options.driver), options)

    def apply(self, operation: Operation[V]) -> Reply[V]:
        asked: Operation[Any] = operation
        with self._session() as session:
            if self._copies is not None and isinstance(asked, Enter):
                answer = self._copied(session, asked, self._copies)
            else:
                again = asked.again
                answer = session.run(self._command(asked), lambda: self._command(again()))
            return wire.reply(operation, answer)

    def apply_each(self, operations: Sequence[Operation[V]]) -> list[Reply[V]]:
        if self._copies is not None:
            return super().apply_each(operations)
        with self._session():
            answers = self._each([self._command(operation) for operation in operations])
            return [wire.reply(*pair) for pair in zip(operations, answers, strict=True)]

    def _command(self, operation: Operation[object]) -> Command:
        """The script that has the rule of *operation*, and what it is told."""
        script, claim = scripts.BY_OPERATION[type(operation)], operation.claim
        names = self._names(claim.key, claim.task)
        return script.on(names, [self._now(), *wire.arguments(operation)])

    def _copied(self, session: RedisSession, enter: Enter, copies: Copies) -> Any:
        """What is answered to *enter*, if it has been copied in time.

        Otherwise the key is released: a replica that is promoted might not know of the hold.
        """
        answers = session.each([self._command(enter)], copies)
        if isinstance(answers[0], TooFewCopies):
            # What waits here may be the only message: its own, or that of another delivery.
            claim = replace(enter.claim, begun=False)
            outcome = Outcome.REPEAT if claim.has_message else Outcome.OVER
            self.leave(claim, outcome, enter.message)
        return checked(answers)[0]

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        with self._session() as session:
            (answer,) = checked(session.each([self._renewal(claims)], self._copies))
            return wire.renew_verdicts(answer, claims)

    def _renewal(self, claims: Sequence[Claim]) -> Command:
        keys = [wire.state_of(self._prefix, claim.key) for claim in claims]
        return scripts.RENEW.on(keys, [self._now(), *wire.renew_arguments(claims)])

    def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        with self._session() as session:
            seconds, microseconds = session.run(scripts.TIME.on(self._indexes[:1], []))
            return int(seconds) * SECOND + int(microseconds)

    def sweep(self, limit: int = 100) -> Swept:
        with self._session() as session:
            return wire.swept(session.run(scripts.SWEEP.on(self._indexes, [self._now(), limit])))

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self._session():
            shards = listing.items_of(self._each, self._prefix, task_ids)
        waiting = [item for shard in shards for item in shard if not item.is_dead]
        named = ((wire.key_of(item.member), item.task) for item in waiting)
        return [(key, wire.shown(task)) for key, task in named if key is not None]

    def message(self, key: str, task: str) -> bytes | None:
        with self._session() as session:
            return bytes(session.run(self._on(scripts.MESSAGE, key, task))) or None

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        with self._session():
            letters = listing.oldest_dead(self._each, self._prefix, limit)
        return sorted(letters, key=by_age)

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        with self._session():
            items = listing.items_of(self._each, self._prefix, task_ids)
            names = [[item.member + item.task for item in shard if item.is_dead] for shard in items]
            return sorted(listing.dead_named(self._each, self._prefix, names), key=by_age)

    def count_dead(self) -> int:
        with self._session():
            shards = wire.of_shards(self._prefix, "died")
            return sum(self._each([("ZCARD", shard) for shard in shards]))

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """With ``dlock_wait_replicas`` they have come to so many replicas, too, like a hold."""
        with self._session() as session:
            beside = wire.notes_of(self._prefix, key)
            command = scripts.NOTE.on([beside], wire.note_arguments(token, notes))
            (answer,) = checked(session.each([command], self._copies))
            return bool(answer)

    def notes(self, key: str) -> dict[str, bytes]:
        with self._session():
            (fields,) = self._each([("HGETALL", wire.notes_of(self._prefix, key))])
            return wire.notes(fields)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        """With ``dlock_wait_replicas`` it has come to so many replicas, too, like a hold."""
        args = [self._now(), was or b"", becomes or b"", stays]
        command = scripts.SWAP.on([wire.swap_of(self._prefix, name)], args)
        with self._session() as session:
            (answer,) = checked(session.each([command], self._copies))
            return bytes(answer) or None

    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        texts_by_name: dict[str, bytes] = {}
        with self._session() as session:
            for names in self._swap_names(session, limit):
                texts = self._each([("GET", wire.swap_of(self._prefix, name)) for name in names])
                now = self.now()
                standing = (wire.swapped(*pair, now) for pair in zip(names, texts, strict=True))
                texts_by_name.update(pair for pair in standing if pair is not None)
                if len(texts_by_name) >= limit:
                    break
        return list(texts_by_name.items())[:limit]

    def _swap_names(self, session: RedisSession, limit: int) -> Iterator[list[str]]:
        return listing.swapped(session.run, self._prefix, limit)

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        """A thousand entries a script: others get their turn in between."""
        with self._session() as session:
            state, waiting = KeyState(), dict[str, Waiting]()
            for start in count(0, PEEK):
                size = PEEK if limit is None else min(PEEK, limit - start)
                lost = b"1" if limit is None and not start else b""
                command = self._on(scripts.PEEK, key, start, start + size - 1, lost)
                part = wire.key_state(session.run(command))
                state = state if start else part
                waiting |= {entry.task: entry for entry in part.waiting}  # some may have moved up
                if len(part.waiting) < PEEK or start + size == limit:
                    return wire.with_queue(state, tuple(waiting.values()))
        raise AssertionError("unreachable")

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        with self._session() as session:
            return wire.position(session.run(self._on(scripts.POSITION, key, task)))

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """For a page ten thousand names are looked at, so it may be empty where there are many.

        A cursor is of one server: over its restart, or a failover, a key may be left out.
        """
        at = listing.position(cursor, waiting=waiting)
        with self._session() as session:
            if waiting:
                return listing.with_messages(self._each, self._indexes, at, limit)
            return listing.held(session.run, self._prefix, at[0], limit)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """A hundred keys a script, all in one flight: others get their turn in between."""
        states: dict[int, KeyState] = {}
        with self._session():
            together = self._together(keys)
            parts = [p[start : start + LOOK] for p in together for start in range(0, len(p), LOOK)]
            for part, answer in zip(parts, self._heads_of(keys, parts), strict=True):
                for place, row in zip(part, answer, strict=True):
                    with suppress(*NONSENSE):
                        states[place] = wire.key_state(row)
        if len(states) < len(keys):
            raise unreadable(keys[n] for n in range(len(keys)) if n not in states)
        return [states[n] for n in range(len(keys))]

    def _together(self, keys: Sequence[str]) -> list[Sequence[int]]:
        """The places of keys that one script can look at."""
        return [range(len(keys))]

    def _heads_of(self, keys: Sequence[str], parts: Sequence[Sequence[int]]) -> list[Any]:
        return self._each([self._heads([keys[n] for n in part]) for part in parts])

    def _heads(self, keys: Sequence[str]) -> Command:
        names = [name for key in keys for name in wire.touched(self._prefix, key)[:2]]
        return scripts.HEADS.on(names, [self._now()])

    def _each(self, commands: Sequence[Command]) -> list[Any]:
        """What is answered to *commands*, if all are answered."""
        return checked(self._session().each(commands))

    def close(self) -> None:
        with self._session() as session:
            session.close()

    def _on(self, script: scripts.Script, key: str, *args: Any) -> Command:
        return script.on(self._names(key), [self._now(), *args])

    def _names(self, key: str, task: str = "") -> list[str]:
        """What a script is told of *key*: it makes all other names from the first."""
        return [wire.state_of(self._prefix, key)]
