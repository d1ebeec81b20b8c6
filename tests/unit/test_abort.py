"""A strike at every instant at which the interpreter lets one in: it hits the body, or nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

import pytest

from celery_dlock import Lease, LockLost
from celery_dlock.core import sinks as telling
from celery_dlock.core.events import Parked, Subject
from celery_dlock.core.sinks import Sinks
from celery_dlock.delivery import abort as abort_module
from celery_dlock.delivery.abort import Abort, shielded
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


def test_a_body_is_struck_or_returns_and_nothing_strikes_later(
    run: Callable[[Callable[[], Any]], Any],
) -> None:
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


def test_what_is_shielded_is_struck_before_or_after_and_never_halfway(
    run: Callable[[Callable[[], Any]], Any],
) -> None:
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
