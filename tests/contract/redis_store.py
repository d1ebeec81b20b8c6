"""A store on a real server, and a look at what its operations cost there."""

# mypy: allow-untyped-calls

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import redis.connection

from celery_dlock.stores.base import BackendOptions, Clock, Copies
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redis.wire import base_name, names
from tests.services.redis import RedisServer

ROOT = Path(__file__).parents[2]


@dataclass
class Cost:
    """What the server did within a block: requests that it read, and every command by name."""

    requests: int = 0
    commands: Counter[str] = field(default_factory=Counter[str])
    microseconds: int = 0  # within scripts


class StoreOnRedis:
    """A :class:`RedisBackend` with a prefix of its own, beside a client that looks in."""

    def __init__(
        self,
        server: RedisServer,
        clock: Clock | None,
        copies: Copies | None = None,
        **driver: Any,
    ) -> None:
        self.prefix = f"test-{uuid.uuid4().hex}"
        self.options = BackendOptions(self.prefix, clock=clock, driver=driver, copies=copies)
        self.backend = RedisBackend.from_url(server.url, self.options)
        self.client = server.client(patience=60.0)

    def names(self, key: str, task: str | None = None) -> list[str]:
        return names(base_name(self.prefix, key), task)

    def lying(self) -> dict[str, int]:
        """Each key of this store with its time to live in milliseconds, -1 for ever."""
        found = list(self.client.scan_iter(f"{self.prefix}:*", count=1000))
        return {name.decode(): int(self.client.pttl(name)) for name in found}

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count what the server does; nobody else may use it meanwhile."""
        cost = Cost()
        before, (commands_before, spent_before) = self._requests(), self._commands()
        yield cost
        (commands_after, spent_after), after = self._commands(), self._requests()
        cost.commands = commands_after - commands_before - Counter(info=2)
        cost.microseconds = spent_after - spent_before
        cost.requests = after - before - 3  # the three looks after the first

    def _requests(self) -> int:
        return int(self._info("stats")["total_reads_processed"])

    def _commands(self) -> tuple[Counter[str], int]:
        stats = self._info("commandstats")
        calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        return Counter(calls), int(stats.get("cmdstat_evalsha", {"usec": 0})["usec"])

    def _info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.info(section)
        return found


@contextmanager
def store_on(
    server: RedisServer, clock: Clock | None = None, **driver: Any
) -> Iterator[StoreOnRedis]:
    store = StoreOnRedis(server, clock, **driver)
    try:
        yield store
    finally:
        store.backend.close()
        store.client.close()


def let_in(server: RedisServer, *names: str) -> None:
    """The user ``locks``, with the rules that the page of the store has, and more *names*."""
    page = (ROOT / "docs/reference/stores/redis.rst").read_text()
    (rules,) = re.findall(r"^ +ACL SETUSER (locks .*)$", page, re.MULTILINE)
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", *rules.split(), *names)


@contextmanager
def requests_sent() -> Iterator[Counter[int]]:
    """How many requests this process sends to each port: what one flight carries is one.

    Those with which the block itself looks into a server are counted, too.
    """
    sent: Counter[int] = Counter()
    send = redis.connection.Connection.send_packed_command

    def count(self: Any, *args: Any, **kwargs: Any) -> None:
        sent[self.port] += 1
        send(self, *args, **kwargs)

    with mock.patch.object(redis.connection.Connection, "send_packed_command", count):
        yield sent
