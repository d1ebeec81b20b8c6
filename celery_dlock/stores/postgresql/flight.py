"""Statements that are gathered for one flight, which is one transaction.

The statements of :mod:`celery_dlock.stores.sql.rows` are used as they are. Those that write have a
further condition here: the flight has the key's lock, and what was read before still stands. A
flight for which that is not so changes nothing, and leaves no error in the server's log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from hashlib import blake2b
from itertools import count
from typing import Any

from celery_dlock.stores.postgresql import functions
from celery_dlock.stores.postgresql.connection import (
    LOCK_TIMEOUT,
    Connections,
    Rows,
    Statement,
)

#: The time on the server; a value that is given replaces it, for tests.
NOW = functions.NOW.format(clock="?::bigint")

#: The same for a comparison with rows: asked once, so that an index leads to them.
INSTANT = f"(SELECT {NOW})"

#: Whether the flight may write.
GO = "current_setting('dlock.go') = 'true'"

#: Which locks it has. These are two statements, for what the second sees must not be older than the
#: lock: else it would miss what was written by whoever had the lock before.
LOCKED = "string_to_array(current_setting('dlock.locked'), ',')::int[]"

# There is an index for each statement that reads rows in their order, of which a few are taken. A
# planner whose statistics are of a time when few waited reads all that wait, and sorts them.
_SETTINGS = {
    "search_path": "dlock, pg_temp",
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": LOCK_TIMEOUT,
    # What cannot be done but by a sort counts as so dear that it would be compiled each time.
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off"),
}
_SET = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items())

# Whatever is the default of the role, or of the database.
_READ = (
    Statement(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
    Statement(f"SELECT {_SET}".encode()),
)
_WRITE = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_LOCK = f"""SELECT {_SET}, set_config('synchronous_commit',
    replace(current_setting('synchronous_commit'), 'off', 'on'), true),
set_config('dlock.locked', coalesce((SELECT string_agg(lock, ',')
    FROM unnest(string_to_array($1, ',')) AS lock
    WHERE pg_try_advisory_xact_lock({functions.LOCK_CLASS}, lock::int)), ''), true)""".encode()
_COMMIT = Statement(b"COMMIT")


class Answer:
    """The answer to one statement; the flight is sent when somebody asks for it."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self.arrived: Rows | None = None

    def _rows(self) -> Rows:
        if self.arrived is None:
            self._send()
        assert self.arrived is not None
        return self.arrived

    @property
    def rowcount(self) -> int:
        return self._rows()[1]

    def fetchone(self) -> Any:
        return next(iter(self.fetchall()), None)

    def fetchall(self) -> list[Any]:
        return self._rows()[0]


class Flight:
    """Gathers statements, and sends them as one transaction that only reads."""

    _begin: tuple[Statement, ...] = _READ
    _repeats = True

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._asked: list[tuple[Statement, Answer]] = []

    def execute(self, statement: str, values: tuple[Any, ...] = (), /) -> Answer:
        answer = Answer(self.send)
        self._asked.append((Statement(numbered(statement), values), answer))
        return answer

    def send(self) -> None:
        asked, self._asked = self._asked, []
        flight = [*self._begin, *(statement for statement, _ in asked), _COMMIT]
        rows = self._connections.fly(flight, repeats=self._repeats)
        for (_, answer), own in zip(asked, rows[len(self._begin) : -1], strict=True):
            answer.arrived = own


class WritingFlight(Flight):
    """One that writes, if it has the *locks* when it comes to that, and the guard holds.

    A flight that *repeats* may be sent again if its answer was lost.
    """

    def __init__(
        self, connections: Connections, locks: Collection[int], *, repeats: bool = True
    ) -> None:
        super().__init__(connections)
        self._begin = _WRITE, Statement(_LOCK, (",".join(map(str, sorted(locks))),))
        self._locks = locks
        self._repeats = repeats

    def guard(self, condition: str, values: Sequence[object] = ()) -> Answer:
        """What is executed from here on changes something only if *condition* holds, too.

        Its answer is whether it has the locks, and whether it may write.
        """
        has_locks = f"cardinality({LOCKED}) = {len(self._locks)}"
        return self.execute(
            f"SELECT {has_locks}, "
            f"set_config('dlock.go', ({has_locks} AND ({condition}))::text, true) = 'true'",
            tuple(values),
        )

    def execute(self, statement: str, values: tuple[Any, ...] = (), /) -> Answer:
        return super().execute(_if_go(statement), values)


def call(connections: Connections, function: str, values: tuple[Any, ...]) -> Any:
    """What a *function* of the schema returns: one statement, which is a transaction by itself.

    It is not repeated if its answer is lost.
    """
    statement = numbered(f"SELECT dlock.{function}({', '.join('?' * len(values))})")
    (((answer,),), _) = connections.fly([Statement(statement, values)], repeats=False)[0]
    return answer


def lock_of(*names: str) -> int:
    """The number of the lock of *names*. What shares one meets more often, and no more."""
    name = "".join(f"{len(part)} {part}" for part in names).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=4).digest(), signed=True)


@cache
def numbered(statement: str) -> bytes:
    """*statement* with ``$1`` and so on for each ``?``."""
    numbers = count(1)
    first, *parts = statement.split("?")
    return "".join([first, *(f"${next(numbers)}{part}" for part in parts)]).encode()


_INSERT = re.compile(r"(.*?) VALUES \((.*)\) ((?:ON CONFLICT|RETURNING) .*)", re.DOTALL)


@cache
def _if_go(statement: str) -> str:
    """What begins with ``WITH`` has conditions of its own."""
    if statement.startswith(("SELECT", "WITH")):
        return statement
    if insert := _INSERT.fullmatch(statement):
        into, values, rest = insert.groups()
        return f"{into} SELECT {values} WHERE {GO} {rest}"
    return f"{statement} AND {GO}"
