"""What is asked of the history's database; each question costs a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from sqlalchemy import ColumnElement, Engine, Executable, and_, case, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from celery_dlock.errors import BackendUnavailable
from celery_dlock.monitoring.history_table import TABLE, hashed, open_engine, said
from celery_dlock.settings import HistoryOptions

#: The latest so many events are counted by task, and of each name so many say how long it took.
COUNTED = 50_000
SAMPLES = 500

#: When, event, key, task id, task name, label, token, details.
Row = tuple[int, str, str | None, str, str, str, int | None, str]

_C = TABLE.c
_ROW = (_C.at, _C.event, _C.key, _C.task_id, _C.task_name, _C.label, _C.token, _C.details)


class Queries:
    """Questions to the database of *engine*."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made = False

    @classmethod
    def of(cls, options: HistoryOptions) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError`, and does not connect."""
        return cls(open_engine(options.url))

    def of_key(self, key: str, limit: int, before: int | None) -> Sequence[Row]:
        """The latest *limit* of *key*, before an instant in microseconds."""
        earlier = [_C.at < before] if before is not None else []
        return self._latest(limit, _C.key_hash == hashed(key), *earlier)

    def of_task(self, task_id: str, limit: int) -> Sequence[Row]:
        """The latest *limit* of a task."""
        return self._latest(limit, _C.task_hash == hashed(task_id))

    def recent(self, limit: int, since: int | None) -> Sequence[Row]:
        """The latest *limit* of all, after an instant in microseconds."""
        return self._latest(limit, *([_C.at > since] if since is not None else []))

    def by_task(
        self, since: int
    ) -> tuple[int | None, Sequence[tuple[str, str, int]], Sequence[tuple[str, str, str]]]:
        """From when on was counted, if not from *since*; how many by name and event; and samples.

        A sample is name, event and details. A message that was refused as it took its place is
        counted as ``Refused``.
        """
        latest = select(*_ROW).where(_C.at >= since, _C.part == 0).order_by(_C.at.desc())
        first = self._ask(select(latest.subquery().c.at).offset(COUNTED - 1).limit(1))
        events = latest.limit(COUNTED).subquery().c
        refused = and_(events.event == "Parked", events.details == '{"refused":true}')
        kind = case((refused, "Refused"), else_=events.event).label("kind")
        counts = select(events.task_name, kind, func.count()).group_by(events.task_name, kind)
        nth = func.row_number().over(
            partition_by=(events.task_name, events.event), order_by=events.at.desc()
        )
        timed = (
            select(events.task_name, events.event, events.details, nth.label("nth"))
            .where(events.event.in_(("Acquired", "Released")))
            .subquery()
            .c
        )
        samples = select(timed.task_name, timed.event, timed.details).where(timed.nth <= SAMPLES)
        return (first[0][0] if first else None), self._ask(counts), self._ask(samples)

    def close(self) -> None:
        self._engine.dispose()

    def _latest(self, limit: int, *where: ColumnElement[bool]) -> Sequence[Row]:
        newest = (_C.at.desc(), _C.writer, _C.number.desc(), _C.part)
        return self._ask(select(*_ROW).where(*where).order_by(*newest).limit(limit))

    def _ask(self, question: Executable) -> Sequence[Any]:
        try:
            if self._made or self._is_there():
                return self._answer(question)
        except SQLAlchemyError as exc:
            self._made = False  # it may have been dropped
            raise BackendUnavailable(f"the history does not answer: {said(exc)}") from exc
        return []

    def _answer(self, question: Executable) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(question)]

    def _is_there(self) -> bool:
        """Whether anybody has written anything yet."""
        self._made = inspect(self._engine).has_table(TABLE.name)
        return self._made
