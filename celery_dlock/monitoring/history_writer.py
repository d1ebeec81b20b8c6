"""How a batch of events gets into the table: whole, once, and without a row that spoils it.

A batch that was interrupted is written again, and what had arrived of it stays as it is. Rows that
are too old are deleted by the way, by whoever writes, a bounded number at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from celery_dlock.core.events import Event, plain
from celery_dlock.monitoring.history_table import TABLE, create, rows, said

logger = logging.getLogger("celery_dlock")

#: Seconds between two looks at what is too old, and how many rows are deleted at once, how often.
LOOK_FOR_OLD = 30.0
OLD_AT_ONCE = 5000
OLD_ROUNDS = 20

#: The event of a row that says how many others are missing.
MISSING = "Missing"
_NOBODY = {"event": MISSING, "task_id": "", "task_name": "", "label": ""}

#: What a row is at fault for; for anything else the database is.
_OF_THE_ROW = (DataError, IntegrityError, UnicodeError, ValueError, TypeError, OverflowError)

#: When it happened, in microseconds since 1970, its number, and what.
Noted = tuple[int, int, Event]


class Writer:
    """Writes to the database of *engine*, for the sink with the number *name*.

    What is older than *keep* seconds is deleted.
    """

    def __init__(self, engine: Engine, name: int, keep: float) -> None:
        self._engine = engine
        self._name = name
        self._keep = int(keep * 1_000_000)
        self._made = False
        self._look_for_old = 0.0

    def write(self, batch: Sequence[Noted], missing: int = 0) -> None:
        """Write *batch*, and that so many are *missing* before it.

        Whatever it raises, it may be written again.
        """
        found = [row for at, number, event in batch for row in self._rows(at, number, plain(event))]
        if missing:
            at, number, _ = batch[0]
            found += self._rows(at - 1, -number, {**_NOBODY, "events": missing})
        try:
            if not self._made:
                create(self._engine)
                self._made = True
            self._insert(found)
        except _OF_THE_ROW:
            for row in found:
                self._insert_alone(row)
        except BaseException:
            self._made = False  # somebody may have dropped it
            raise

    def delete_old(self) -> None:
        """Delete what is too old, if nobody has looked for a while; it raises nothing."""
        now = time.monotonic()
        if now < self._look_for_old:
            return
        self._look_for_old = now + LOOK_FOR_OLD
        until = time.time_ns() // 1000 - self._keep
        try:
            for _ in range(OLD_ROUNDS):
                if not self._delete_some(until):
                    return
        except SQLAlchemyError as exc:  # two processes may be in each other's way
            logger.debug("old events are deleted later: %s", said(exc))

    def _rows(self, at: int, number: int, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(rows(at, self._name, number, fields))

    def _insert(self, found: list[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            connection.execute(insert(TABLE), found)

    def _insert_alone(self, row: dict[str, Any]) -> None:
        try:
            self._insert([row])
        except IntegrityError:
            pass  # it is there: the answer to an earlier attempt was lost
        except _OF_THE_ROW as exc:
            logger.warning("an event of a lock is not in the history: %s", said(exc))

    def _delete_some(self, until: int) -> bool:
        """Delete a bounded number of those before *until*; whether there may be more."""
        some = select(TABLE.c.at).where(TABLE.c.at < until).order_by(TABLE.c.at)
        with self._engine.connect() as connection:
            last = connection.scalar(some.offset(OLD_AT_ONCE).limit(1))
        end = TABLE.c.at < until if last is None else TABLE.c.at <= last
        with self._engine.begin() as connection:
            connection.execute(delete(TABLE).where(end))
        return last is not None
