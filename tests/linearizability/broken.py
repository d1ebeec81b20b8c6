"""Stores that are right for one client at a time, and wrong for several: one known defect each."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from celery_dlock.core.edits import holder_of
from celery_dlock.core.operations import Enter, Leave, Operation
from celery_dlock.core.state import Claim, LeaveVerdict, RenewVerdict, Run
from celery_dlock.stores.base import BackendOptions, Reply
from celery_dlock.stores.consensus.rows import Commit
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redis.client import RedisSession
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.stores.sql.sqlite_file import DatabaseFile
from tests.contract.memory_rows import MemoryRows, RowsBackend

V = TypeVar("V")


def _on_the_way(seconds: float = 0.0005) -> None:
    """What a request takes in a network, in which others come."""
    time.sleep(seconds)


class ReadsAndThenWrites(MemoryBackend):
    """What it commits comes of what it read before, whoever has written in between."""

    def apply(self, operation: Operation[V]) -> Reply[V]:
        now = self._now()
        with self._mutex:
            before = self._load(operation, now)
            self._token += isinstance(operation, Enter)
            step = operation.apply(before, now, self._token)
        _on_the_way()
        with self._mutex:
            return self._commit(operation, before, step, now)


class AnswersBeforeItCommits(MemoryBackend):
    """A release is said to be done, and is carried out a moment later."""

    def apply(self, operation: Operation[Any]) -> Reply[Any]:
        if not isinstance(operation, Leave):
            return super().apply(operation)
        now = self._now()
        with self._mutex:
            verdict = operation.apply(self._load(operation, now), now).verdict
        threading.Timer(0.001, lambda: MemoryBackend.apply(self, operation)).start()
        return Reply(verdict)


class TakesTheTokenFirst(MemoryBackend):
    """Who is let in later may have come for its token earlier."""

    _tokens = count(1)

    def apply(self, operation: Operation[V]) -> Reply[V]:
        token = next(self._tokens)
        _on_the_way()
        with self._mutex:
            now = self._now()
            before = self._load(operation, now)
            return self._commit(operation, before, operation.apply(before, now, token), now)


class GivesOneSlotTwice(MemoryBackend):
    """The slots that are taken are counted before the key is asked for."""

    def apply(self, operation: Operation[Any]) -> Reply[Any]:
        taken = {holder.slot for holder in self.peek(operation.claim.key).holders}
        _on_the_way()
        reply = super().apply(operation)
        if isinstance(reply.verdict, Run) and reply.verdict.token:
            unused = next(slot for slot in count() if slot not in taken)
            return Reply(Run(unused, reply.verdict.token), reply.wakes)
        return reply


class BringsBackWhatItRenews(MemoryBackend):
    """A lease is written back that was released meanwhile."""

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        seen = [holder_of(self.peek(claim.key), claim) for claim in claims]
        _on_the_way(0.003)  # one plan in seventy releases meanwhile what it renews
        for claim, holder in zip(claims, seen, strict=True):
            found = self._keys.get(claim.key)
            if found and holder and holder_of(found.state, claim) is None:
                found.state = replace(found.state, holders=(*found.state.holders, holder))
        return super().renew(claims)


class _EachStatementAlone(DatabaseFile):
    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._translated():
            if self._connection is None:
                self._connection = self._open()
            yield self._connection


class BeginsNoTransaction(SqliteBackend):
    """Each statement is committed by itself."""

    def __init__(self, path: Path, options: BackendOptions) -> None:
        super().__init__(path, options)
        self._file = _EachStatementAlone(path, 5.0)


class _Unguarded(MemoryRows):
    def _may_happen(self, commit: Commit) -> bool:
        is_there = self.shelf.rows.get(commit.name)
        return super()._may_happen(replace(commit, was=is_there))


class CommitsWhateverItHasRead(RowsBackend):
    """Nobody asks whether the version row still stands."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.rows.__class__ = _Unguarded


class SaysNotThatItAsksAgain(RedisBackend):
    """The answer to a release was lost, and its second one is that the key is not held."""

    def _answer(self, session: RedisSession, operation: Operation[object]) -> Any:
        return session.run(self._command(operation))


class LeavesTheQueueOnly(RedlockBackend):
    """The other nodes keep a claim that was released, until it ends."""

    def _leave(self, leave: Leave) -> Reply[LeaveVerdict]:
        return self._machine.apply(leave)
