"""Time in ZooKeeper: what clock instants go by, and how what is over is forgotten.

The clock is the leader's, as far as it can be told from the instants that it writes into nodes.
But no node goes away with time: what is done is kept until somebody deletes it.

The process that writes such a row remembers it, and deletes a hundred at a time once they are due.
What dead processes leave behind is found by :meth:`Forgetting.tidy`, a part of all at a time.

None is deleted early. Two processes may find the same row overdue; the task may be done again
before the slower one deletes, and a node made anew has the version of the one before. So each
deletion also moves the version of the folder, and happens only if nobody else has moved it since
the row was read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import CLOCK, SECOND
from celery_dlock.stores.base import wall_clock
from celery_dlock.stores.consensus.rows import PARTS, Kind, Name
from celery_dlock.stores.zookeeper.client import Session, children, get
from celery_dlock.stores.zookeeper.rows import Layout, mark_in, part_of

#: Microseconds in the unit of ZooKeeper's instants.
UNIT = 1000

#: Rows in one request, and how many of a part a process remembers and looks at.
BATCH = 100
KNOWN = 1_000

#: Microseconds that two processes may differ about the server's time.
SLACK = SECOND


def host_time() -> int:
    """Microseconds since some instant, on this host's clock."""
    return time.clock_gettime_ns(CLOCK) // 1000


class ServerClock:
    """The leader's clock; this host's wall clock until it has heard of the other."""

    def __init__(self) -> None:
        self._offset = wall_clock() - host_time()
        self.heard_of = False

    def now(self) -> int:
        return host_time() + self._offset

    def heard(self, sent: int, written: int, received: int) -> None:
        """An instant *written* there, in milliseconds, lay between *sent* and *received* here.

        The offset changes no more than it must, so that it does not shake with each answer.
        """
        at = written * UNIT
        least, most = at - received, at + UNIT - sent
        self._offset = min(max(self._offset, least), most)
        self.heard_of = True


class Forgetting:
    """What this process has to forget. It has no lock, because a fork may come at any time."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._expected = [deque[tuple[int, str]](maxlen=KNOWN) for _ in range(PARTS)]

    def expect(self, name: Name, until: int) -> None:
        self._expected[part_of(name)].append((until, self._layout.path(name)))

    def overdue(self, part: int, now: int) -> list[str]:
        """A batch that is due, if there is a full one; it is the caller's from now on."""
        rows = self._expected[part]
        try:
            if rows[BATCH - 1][0] + SLACK > now:
                return []
            return [rows.popleft()[1] for _ in range(BATCH)]
        except IndexError:  # another thread was faster
            return []

    def forget(self, session: Session, part: int, paths: Sequence[str]) -> None:
        """Delete those of a batch that are overdue; if overtaken, leave them to a later tidying.

        The leader says what time it is, with the version that it gives their folder before they
        are read: if that still stands when they are deleted, they are those rows.
        """
        folder = self._layout.folder(Kind.DONE, part)
        (stat,) = session.flight([lambda kazoo: kazoo.set_async(folder, b"")])
        if stat is None:
            return
        now = stat.mtime * UNIT
        rows = session.flight(get(path) for path in paths)
        due = [
            path
            for path, row in zip(paths, rows, strict=True)
            if row is not None and 0 < mark_in(row[0]) < now - SLACK
        ]
        if not due:
            return
        transaction = session.kazoo.transaction()
        transaction.set_data(folder, b"", stat.version)
        for path in due:
            transaction.delete(path)
        session.flight([lambda kazoo: transaction.commit_async()])

    def tidy(self, session: Session, part: int) -> None:
        """Forget what is overdue in a part, or in as much of it as is looked at in one go."""
        folder = self._layout.folder(Kind.DONE, part)
        (files,) = session.flight([children(folder)])
        chosen = CHANCE.sample(files or [], min(KNOWN, len(files or [])))
        for start in range(0, len(chosen), BATCH):
            paths = [f"{folder}/{file}" for file in chosen[start : start + BATCH]]
            self.forget(session, part, paths)
