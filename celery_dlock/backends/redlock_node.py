"""One node of a Redlock as this process sees it: how to reach it, and whether to try just now.

Nobody waits for a node that is in trouble. A thread tries it again and again, and ends when it is
back, or when nobody has asked for it meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import redis

from celery_dlock.backends.redlock_resp import Refusal

#: Seconds between two tries of a node that is away, at first and at most.
REST_FIRST, REST_LONGEST = 0.1, 5.0

#: Of so many claims a node is told that they have left when it is back.
MOST_UNSAID = 1000

#: What a node says that is to hold a key, and has to be told first what the others know.
FORGOT = -3

#: What a broken connection raises, or one that never came to be.
BROKEN = (OSError, redis.RedisError, ValueError, Refusal)


class Node:
    """What the connections of a process to one node share."""

    def __init__(self, connection: type[Any], options: Mapping[str, Any]) -> None:
        self.timeout: float = options["socket_timeout"]
        self.place = f"{options['host']}:{options['port']}"
        self.trouble = ""
        self.forgot = False  # it has to be told what the others know
        self._connection = connection
        self._options = options
        self._mutex = threading.Lock()
        self._away = False
        self._wanted = False
        self._unsaid: deque[tuple[float, bytes]] = deque(maxlen=MOST_UNSAID)

    def is_away(self) -> bool:
        """Whether to do without it."""
        self._wanted = self._away
        return self._away

    def connection(self) -> Any:
        """A connection of redis-py's, not open yet."""
        return self._connection(**self._options)

    def failed(self, error: Exception) -> None:
        """Do without it until it has answered somebody who has the time to wait."""
        self.trouble = _without_secrets(error)
        with self._mutex:
            if self._away:
                return
            self._away = True
        threading.Thread(target=self._wait_for_it, name="celery-dlock-node", daemon=True).start()

    def owe(self, command: bytes, lease: float) -> None:
        """*command* did not get through; there is no use in it when *lease* seconds are over."""
        self._unsaid.append((time.monotonic() + lease, command))

    def unsaid(self) -> Iterator[bytes]:
        """What it was not told, each only once."""
        while True:
            try:
                until, command = self._unsaid.popleft()
            except IndexError:
                return
            if until > time.monotonic():
                yield command

    def _wait_for_it(self) -> None:
        rest = REST_FIRST
        try:
            while True:
                self._wanted = False
                time.sleep(rest)
                if self._answers() or (rest >= REST_LONGEST and not self._wanted):
                    return
                rest = min(2 * rest, REST_LONGEST)
        finally:
            self._away = False

    def _answers(self) -> bool:
        connection = self.connection()
        try:
            connection.connect()
            connection.send_command("PING")
            return bool(connection.read_response() == b"PONG")
        except BROKEN:
            return False
        finally:
            with suppress(*BROKEN):
                connection.disconnect()


def _without_secrets(error: Exception) -> str:
    """Servers and proxies quote what they did not understand, and that may be a password."""
    return str(error) if isinstance(error, Refusal) else type(error).__name__
