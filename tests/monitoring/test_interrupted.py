"""What interrupts a sink, or fails in one, keeps no other from being told."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.events import Event, Parked, StaleRejected
from celery_dlock.monitoring import endings, stream
from celery_dlock.monitoring.counting import tally
from celery_dlock.monitoring.stream import EventStreamSink
from tests.monitoring.happenings import KEY, about, acquired
from tests.services.instants import LOOKS, in_another_thread


class Limit(Exception):
    """As a soft time limit is: raised by a signal's handler."""


def struck(call: Callable[[], None], number: int, files: set[str]) -> bool:
    """Whether *call* had a *number*-th instant in *files* to be interrupted at."""
    left, last = number, dict[FrameType, int]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, last[frame] = last.get(frame), frame.f_lasti
            if before is not None and dis.opname[frame.f_code.co_code[before]] in LOOKS:
                left -= 1
                if left == 0:
                    raise Limit
        return trace

    usual = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it here
    sys.settrace(trace)
    try:
        call()
    except Limit:
        return True
    finally:
        sys.settrace(usual)
    return False


def test_a_time_limit_that_strikes_in_the_event_stream_leaves_no_lock_taken() -> None:
    sink = EventStreamSink(Celery("stream", broker="memory://", set_as_current=False))
    sink._thread = threading.current_thread()  # so that none is started, and all is here
    files, free = {stream.__file__, threading.__file__}, list[bool]()

    def look() -> None:
        free.append(sink._mutex.acquire(blocking=False))
        if free[-1]:
            sink._mutex.release()

    while struck(lambda: sink(acquired(about())), len(free) + 1, files):
        in_another_thread(look)

    assert len(free) > 5
    assert all(free)


def test_an_event_of_a_signal_handler_is_counted_beside_the_one_it_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

        def at_end(self) -> None:
            self.asked = True
            raise OSError("its folder is gone")

    sinks = [Fails() for _ in range(3)]
    for sink in sinks:
        endings.tell_end(sink)

    endings.end()

    assert all(sink.asked for sink in sinks)
