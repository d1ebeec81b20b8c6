"""Tells what happened to a lock to whoever listens, the log first."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from celery_dlock.core.event_log import log, tells
from celery_dlock.core.events import Event, Sink, Subject

logger = logging.getLogger("celery_dlock")


class Sinks:
    """Tells every sink; one that fails is logged and the others still hear.

    *through* are errors that only happen to strike inside a sink: a time limit is nobody's defect.
    A sink may have a method ``carry(subject)`` that returns a dict of short texts: the message of
    that subject carries them when it is published again or parked. It may have another one,
    ``unseen()``, that returns why nobody can see what it counts in a process that serves nothing.
    """

    def __init__(
        self, sinks: Sequence[Sink] = (), through: tuple[type[Exception], ...] = ()
    ) -> None:
        self._sinks = (log, *sinks)
        self._carriers = [carry for sink in sinks if (carry := getattr(sink, "carry", None))]
        self._through = through

    def hears_all(self) -> bool:
        """Whether anybody hears what happens to each lock, or only what the log tells of some."""
        return len(self._sinks) > 1 or tells(logging.DEBUG)

    def unseen(self) -> list[str]:
        """Why nobody can see what sinks count in a process that serves nothing; empty if seen."""
        whys = [why for sink in self._sinks if (why := getattr(sink, "unseen", None))]
        return [reason for why in whys if (reason := why())]

    def warn_of_unseen(self) -> None:
        """Warn, as a process starts that serves nothing, that its counters are lost."""
        for reason in self.unseen():
            logger.warning("%s, so the counters of this process and its children are lost", reason)

    def emit(self, event: Event) -> None:
        """Tell every sink of *event*."""
        for sink in self._sinks:
            try:
                sink(event)
            except self._through:
                raise
            except Exception:
                logger.exception("the sink %r failed on %r", sink, event)

    @contextmanager
    def also(self, sink: Sink) -> Iterator[None]:
        """Have *sink* hear, too, while the block runs."""
        before = self._sinks
        self._sinks = (*before, sink)
        try:
            yield
        finally:
            self._sinks = before

    def carry(self, subject: Subject) -> dict[str, str]:
        """What the message of *subject* is to carry: what it came with, and what sinks add."""
        carried = dict(subject.carried)
        for carry in self._carriers:
            try:
                carried.update(carry(subject))
            except self._through:
                raise
            except Exception:
                logger.exception("%r failed on %r", carry, subject)
        return carried
