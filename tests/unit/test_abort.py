"""A strike at every instant at which the interpreter lets one in: it hits the body, or nothing."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any
from weakref import WeakSet, ref

import pytest
from celery.exceptions import Retry, SoftTimeLimitExceeded

from celery_dlock import Lease, LockLost
from celery_dlock.core import sinks as telling
from celery_dlock.core.events import Parked, Subject
from celery_dlock.core.sinks import Sinks
from celery_dlock.delivery import abort as abort_module
from celery_dlock.delivery.abort import (
    SIGNAL,
    Abort,
    AbortableCall,
    MainThread,
    OtherThread,
    Thread,
    shielded,
    this_thread,
)
from tests.services.instants import Instant, every_instant, in_another_thread, outcome

NOTHING = Lease((), "none")


@pytest.fixture(params=["main thread", "other thread"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Call it in a thread of this kind."""

    def run_here(call: Callable[[], Any]) -> Any:
        if request.param == "main thread":
            return call()
        found: list[Any] = []
        in_another_thread(lambda: found.append(call()))
        return found[0]

    return run_here


def body() -> str:
    return "ran"


def test_a_body_is_struck_at_once_or_never(run: Callable[[Callable[[], Any]], Any]) -> None:
    def scenario(number: int) -> tuple[str, bool]:
        abort = Abort()
        instant = Instant(number, lambda: abort.strike("lost", "why"), {__file__})
        found = outcome(lambda: abort.run(NOTHING, body), instant)
        assert abort._call.frame is None
        return found, instant.left > 0

    outcomes = run(lambda: every_instant(scenario))

    # It may come too late, but never too early
    assert "lost" in outcomes
    late = outcomes.index("ran")
    assert outcomes == ["lost"] * late + ["ran"] * (len(outcomes) - late)


@pytest.mark.parametrize("who", [{"outer"}, {"inner"}, {"outer", "inner"}])
def test_of_nested_bodies_the_one_that_lost_its_lease_is_struck(
    run: Callable[[Callable[[], Any]], Any], who: set[str]
) -> None:
    def scenario(number: int) -> tuple[str, bool]:
        outer, inner = Abort(), Abort()

        def strike() -> None:
            if "inner" in who:
                inner.strike("inner", "why")
            if "outer" in who:
                outer.strike("outer", "why")

        def outer_body() -> str:
            return inner.run(NOTHING, body)

        instant = Instant(number, strike, {__file__})
        return outcome(lambda: outer.run(NOTHING, outer_body), instant), instant.left > 0

    outcomes = set(run(lambda: every_instant(scenario)))

    assert "ran" in outcomes
    assert outcomes & who
    assert outcomes <= {"ran", *who}


def test_what_is_shielded_is_never_struck_halfway(run: Callable[[Callable[[], Any]], Any]) -> None:
    def scenario(number: int) -> tuple[str, bool]:
        abort = Abort()
        done: list[str] = []

        def inner() -> str:
            done.append("begun")
            done.append("over")
            return "ran"

        instant = Instant(number, lambda: abort.strike("lost", "why"), {__file__})
        found = outcome(lambda: abort.run(NOTHING, shielded, inner), instant)
        assert done in ([], ["begun", "over"])
        return f"{found}, {len(done)} steps", instant.left > 0

    outcomes = run(lambda: every_instant(scenario))

    assert set(outcomes) == {"lost, 0 steps", "lost, 2 steps", "ran, 2 steps"}


def test_what_is_logged_is_logged_and_nobody_else_is_kept_from_logging(
    run: Callable[[Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_module, "ABORT_RETRY_INTERVAL", 0.001)
    lines: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    logger = logging.Logger("body")
    logger.addHandler(handler)

    def logs() -> str:
        lines.append("before")
        logger.info("logged")
        lines.append("after")
        for _ in range(60_000):
            threading.Event().wait(0.001)
        return "ran"

    def somebody_else_logs() -> None:
        assert handler.lock
        if handler.lock.acquire(blocking=False):
            handler.lock.release()
            lines.append("free")

    def scenario(number: int) -> tuple[str, bool]:
        abort = Abort()
        over: list[bool] = []
        lines.clear()

        def strike() -> None:
            over.append("after" in lines)
            abort.strike("lost", "why")

        instant = Instant(number, strike, {__file__, logging.__file__})
        found = outcome(lambda: abort.run(NOTHING, logs), instant)
        in_another_thread(somebody_else_logs)
        whole = ["before", "logged", "after"]
        assert lines in [[*whole[:n], "free"] for n in range(4)]
        return found, over[0]

    assert set(run(lambda: every_instant(scenario))) == {"lost"}


class Finalized:
    """Calls *what* as it is finalized."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what = what

    def __del__(self) -> None:
        self._what()


def finalizes(what: Callable[[], None]) -> None:
    Finalized(what)


def drops_what_is_weakly_held(what: Callable[[], None]) -> None:
    class Members(set[Any]):
        def discard(self, member: Any) -> None:
            what()

    weak = WeakSet[threading.Event]()
    weak.data = Members()  # type: ignore[attr-defined]
    weak.add(threading.Event())


def tells_that_it_is_gone(what: Callable[[], None]) -> None:
    thing = threading.Event()
    reference = ref(thing, lambda _: what())
    del thing
    assert reference() is None


@pytest.mark.parametrize("drop", [finalizes, drops_what_is_weakly_held, tells_that_it_is_gone])
def test_where_the_interpreter_would_drop_it_it_strikes_later(
    run: Callable[[Callable[[], Any]], Any], drop: Callable[[Callable[[], None]], None]
) -> None:
    came: list[str] = []

    def aborted() -> None:
        abort = Abort()

        def strike() -> None:
            came.append("here")
            in_another_thread(lambda: abort.strike("lost", "why"))

        def body() -> None:
            drop(strike)
            for _ in range(10_000):
                threading.Event().wait(0.001)

        with pytest.raises(LockLost):
            abort.run(NOTHING, body)

    run(aborted)
    assert came == ["here"]


def test_a_sink_is_told_all_and_keeps_no_lock_and_swallows_no_strike(
    run: Callable[[Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_module, "ABORT_RETRY_INTERVAL", 0.001)
    steps: list[str] = []
    gate = threading.Lock()

    def sink(_: object) -> None:
        gate.acquire()
        steps.append("told")
        gate.release()

    sinks = Sinks([sink])
    event = Parked(Subject("id", "other", "order:{order}"), "order:1", refused=False)

    def publishes() -> str:
        steps.append("before")
        sinks.emit(event)
        steps.append("after")
        for _ in range(10_000):
            threading.Event().wait(0.001)
        return "ran"

    def scenario(number: int) -> tuple[str, bool]:
        abort = Abort()
        over: list[bool] = []
        steps.clear()

        def strike() -> None:
            over.append("after" in steps)
            abort.strike("lost", "why")

        instant = Instant(number, strike, {__file__, telling.__file__})
        found = outcome(lambda: abort.run(NOTHING, publishes), instant)
        assert found == "lost"
        assert not gate.locked()
        assert steps in [["before", "told", "after"][:n] for n in range(4)]
        return found, over[0]

    run(lambda: every_instant(scenario))


# What else can happen around an abort: other interruptions, other signals, the body's way out.


greenlet: Any = importlib.import_module("greenlet")


def fails_to_roll_back() -> None:
    raise KeyError


def fails_in_a_driver() -> None:
    try:
        fails_to_roll_back()
    except KeyError as error:
        raise ValueError from error


def means_it() -> None:
    raise KeyError from sys.exception()


def hides_it() -> None:
    raise KeyError from None


def retries() -> None:
    raise Retry


def goes_on() -> None:
    signal.raise_signal(SIGNAL)  # it strikes once only


@pytest.mark.parametrize(
    ("way_out", "ends_with"),
    [
        (fails_to_roll_back, LockLost),
        (fails_in_a_driver, LockLost),
        (means_it, KeyError),
        (hides_it, KeyError),
        (retries, Retry),
        (goes_on, None),
    ],
)
def test_how_an_aborted_body_ends(way_out: Callable[[], None], ends_with: Any) -> None:
    abort = Abort()

    def body() -> None:
        try:
            in_another_thread(lambda: abort.strike("lost", "why"))
        except LockLost:
            way_out()

    with pytest.raises(ends_with) if ends_with else nullcontext():
        abort.run(NOTHING, body)


def test_a_strike_in_one_of_several_tasks_of_asyncio_is_what_the_body_ends_with() -> None:
    abort = Abort()

    async def step() -> None:
        in_another_thread(lambda: abort.strike("lost", "why"))

    async def steps() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(step())

    with pytest.raises(LockLost):
        abort.run(NOTHING, asyncio.run, steps())


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_soft_time_limit_may_strike_besides(
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool, lost: bool
) -> None:
    abort = Abort()
    calls: list[None] = []
    real = Thread.move

    def interrupted(thread: Thread, top: Any) -> None:
        calls.append(None)
        if after or len(calls) != number:
            real(thread, top)
        if len(calls) == number:
            raise SoftTimeLimitExceeded

    def body() -> None:
        if lost:
            in_another_thread(lambda: abort.strike("lost", "why"))

    monkeypatch.setattr(Thread, "move", interrupted)
    with suppress(SoftTimeLimitExceeded, LockLost):
        abort.run(NOTHING, body)
    monkeypatch.undo()
    signal.raise_signal(SIGNAL)

    # Whoever comes next is not struck for it, and can be struck
    following = Abort()
    assert following.run(NOTHING, str, "ran") == "ran"
    struck = Abort()
    with pytest.raises(LockLost):
        struck.run(NOTHING, in_another_thread, lambda: struck.strike("lost", "why"))


def test_what_was_sent_and_has_not_struck_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(abort_module, "_throw", lambda _, error: sent.append(error))
    thread, call = OtherThread(), AbortableCall(frame=sys._getframe())
    thread.move(call)
    call.lost = ("lost", "why")
    thread.tell(call)
    thread.move(None)

    assert [error and issubclass(error, LockLost) for error in sent] == [True, None]


def test_a_signal_that_is_not_ours_goes_to_who_was_there_before() -> None:
    heard: list[int] = []
    before = signal.signal(SIGNAL, lambda number, _: heard.append(number))
    try:
        MainThread().prepare()
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, before)

    assert heard == [SIGNAL]


def test_one_that_comes_late_does_nothing() -> None:
    Abort()
    signal.raise_signal(SIGNAL)


def test_another_greenlet_of_the_thread_is_not_struck() -> None:
    abort = Abort()

    def body() -> None:
        here.switch()
        threading.Event().wait(60)

    here = greenlet.getcurrent()
    other = greenlet.greenlet(lambda: abort.run(NOTHING, body))
    other.switch()
    in_another_thread(lambda: abort.strike("lost", "why"))
    signal.raise_signal(SIGNAL)

    with pytest.raises(LockLost):
        other.switch()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_who_was_about_to_strike() -> None:
    with this_thread().mutex:
        pid = os.fork()
        if pid == 0:
            os._exit(this_thread().mutex.locked())

    assert os.waitpid(pid, 0)[1] == 0


def test_the_stack_of_another_thread_is_that_of_one_instant() -> None:
    def steps(depth: int) -> Iterator[int]:
        if depth:
            yield from steps(depth - 1)
        yield depth

    def body() -> None:
        while not over.is_set():
            sum(steps(8))

    over, interval = threading.Event(), sys.getswitchinterval()
    thread = threading.Thread(target=body)
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            stack = abort_module._stack_of(thread.ident or 0)
            outermost = stack[-1]
            assert isinstance(outermost, FrameType)
            assert outermost.f_code.co_name == "_bootstrap"
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


FREES_A_LOCAL_AS_IT_LOOKS = """
import gc, threading
from celery_dlock.delivery.abort import _stack_of

for threshold in range(1, 60):
    gc.set_threshold(10**6)
    gc.collect()
    garbage = [threading.local()]
    garbage[0].used = garbage
    del garbage
    gc.set_threshold(threshold)
    assert _stack_of(threading.get_ident())
assert gc.isenabled()
print("all")
"""


def test_nothing_is_collected_while_the_stack_of_a_thread_is_taken() -> None:
    """Or the whole process would stand still for ever, on Python 3.11.7."""
    command = [sys.executable, "-c", FREES_A_LOCAL_AS_IT_LOOKS]
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == b"all\n"
