"""A shorter way to one server: a connection of redis-py, and none of what its client does besides.

Of the time that a script takes, the client spends the larger part on packing, pools and metrics.
A connection serves one command at a time, as in redis-py's pool. One whose answer did not come, for
whatever reason, is closed before anybody else can get that answer, and opens again when it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import NoScriptError

from celery_dlock.backends.redis_client import Session
from celery_dlock.backends.redis_scripts import Command, in_full
from celery_dlock.backends.redlock_resp import packed


class DirectSession(Session):
    """As many connections as there are commands at the same time; the last one used goes first."""

    def __init__(self, client: redis.Redis, place: str, secrets: Sequence[object]) -> None:
        super().__init__(client, place, secrets)
        self._pool: Any = client.connection_pool
        self._idle: deque[Any] = deque()  # its ends are safe to use from any thread

    def run(self, command: Command) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            return self._ask(connection, command)
        except NoScriptError:
            return self._ask(connection, in_full(command))
        finally:
            self._idle.append(connection)

    def close(self) -> None:
        super().close()
        while self._idle:
            self._idle.pop().disconnect()

    def _ask(self, connection: Any, command: Command) -> Any:
        request = [packed(*command)]

        def ask() -> Any:
            try:
                connection.send_packed_command(request)
                return connection.read_response()
            except redis.ResponseError:
                raise
            except BaseException:  # a time limit, too, strikes while the answer is on its way
                connection.disconnect()
                raise

        return connection.retry.call_with_retry(ask, _already_closed)


def _already_closed(error: Exception) -> None:
    pass
