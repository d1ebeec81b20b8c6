"""What interrupts a sink, or fails in one, keeps no other from being told."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from celery_dlock.core.events import Event, Parked, StaleRejected
from celery_dlock.monitoring import batching
from celery_dlock.monitoring.prometheus import tally
from celery_dlock.monitoring.stream import EventStreamSink
from tests.monitoring.happenings import KEY, about, acquired
from tests.services.instants import in_another_thread, struck


class Limit(Exception):
    """As a soft time limit is: raised by a signal's handler."""


def test_a_time_limit_that_strikes_in_the_event_stream_leaves_no_lock_taken() -> None:
    sink = EventStreamSink(Celery("stream", broker="memory://", set_as_current=False))
    sink._thread = threading.current_thread()  # so that none is started, and all is here
    sink._awaited = 1
    files, free = {batching.__file__, threading.__file__}, list[bool]()

    def look() -> None:
        free.append(sink._mutex.acquire(blocking=False))
        if free[-1]:
            sink._mutex.release()

    while struck(lambda: sink(acquired(about())), len(free) + 1, files, Limit):
        in_another_thread(look)

    assert len(free) > 5
    assert all(free)


def test_a_signal_handlers_event_is_counted_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, counted = tally._count, list[Event]()
    interrupted = StaleRejected(about(), KEY, 7)
    of_the_handler = Parked(about(), KEY, refused=True)

    def count(event: Event) -> None:
        if event is interrupted:
            tally(of_the_handler)
        usual(event)
        counted.append(event)

    monkeypatch.setattr(tally, "_count", count)
    thread = threading.Thread(target=tally, args=(interrupted,), daemon=True)
    thread.start()
    thread.join(60)

    assert [event for event in counted if event.subject == about()] == [of_the_handler, interrupted]


def test_of_sinks_that_have_something_left_each_is_asked_though_others_fail() -> None:
    class Fails:
        asked = False

        def at_exit(self) -> None:
            self.asked = True
            raise OSError("its folder is gone")

    sinks = [Fails() for _ in range(3)]
    for sink in sinks:
        batching.call_at_exit(sink)

    batching.end()

    assert all(sink.asked for sink in sinks)
