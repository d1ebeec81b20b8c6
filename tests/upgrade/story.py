"""What one version of the library leaves in a store, and what the next one has to find there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

from celery_dlock import LockedTask, Ordered
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import (
    Busy,
    Cause,
    Drop,
    KeyState,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Run,
)
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import NoteStore
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    claim,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock
from tests.services.desk import Desk, open_desk

#: Seconds: longer than from the one version to the next, and for which nothing waits for too long.
LONG, FOR_EVER = 12 * 3600.0, 30 * DAY
MESSAGE = "message of {}"

HELD = claim("a:0:0", key="held", ttl=LONG, name="shop.charge", where="worker@web1:4711")


def tell(store: NoteStore, clock: ManualClock) -> None:
    """Leave in *store* each thing that a key can have, within an hour."""
    running(store.enter(claim("a:0:0", key="dead")))
    _park(store, "dead", "b:0:0")
    store.leave(claim("a:0:0", key="dead"), Outcome.DONE)
    while not store.dead_letter("dead", "b:0:0", Cause.UNREADABLE).verdict:
        clock.advance(60)
        store.sweep()

    assert isinstance(store.enter(HELD).verdict, Run)
    _park(store, "held", "b:0:0", "c:2:1")
    store.enter(claim("d:0:0", key="held", wait=PLACE, patience=LONG))

    running(store.enter(claim("a:0:0", key="woken")))
    _park(store, "woken", "b:0:0")
    store.leave(claim("a:0:0", key="woken"), Outcome.DONE)

    for task in ("a:0:0", "b:0:0"):
        running(store.enter(claim(task, key="read", ttl=LONG, mode=SHARED)))

    running(store.enter(claim("a:0:0", key="slots", ttl=LONG, limit=3)))
    cools = claim("b:0:0", key="slots", limit=3, cooldown=round(LONG * SECOND))
    running(store.enter(cools))
    store.leave(cools, Outcome.DONE)

    store.swap("unique", None, b"a claim", round(FOR_EVER * SECOND))
    assert store.note("beat", 7, {"nightly": b"sent"})


def hear(store: NoteStore, clock: ManualClock) -> None:
    """All of that is there, and goes on as if nothing had happened."""
    clock.advance(2 * 3600)
    busy = store.enter(claim("x:0:0", key="held")).verdict
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert (busy.holder.owner, busy.holder.name) == (HELD.owner, HELD.name)
    assert (busy.holder.where, busy.parked) == (HELD.where, 2)
    assert isinstance(store.renew([HELD])[0], Renewed)
    left = store.leave(HELD, Outcome.DONE)
    assert isinstance(left.verdict, Left)
    assert [(wake.task, wake.message) for wake in left.wakes] == [("b:0:0", _message("b:0:0"))]
    assert store.enter(replace(HELD, nonce="2")).verdict == Drop(Reason.DONE)
    running(store.enter(claim("b:0:0", key="held", wait=QUEUE), _message("b:0:0")))
    assert woken(store.leave(claim("b:0:0", key="held"), Outcome.DONE)) == ["c:2:1"]

    assert store.message("woken", "b:0:0") == _message("b:0:0")
    running(store.enter(claim("b:0:0", key="woken", wait=QUEUE), _message("b:0:0")))

    running(store.enter(claim("c:0:0", key="read", mode=SHARED)))
    assert isinstance(store.enter(claim("d:0:0", key="read")).verdict, Busy)

    running(store.enter(claim("c:0:0", key="slots", limit=3)))
    assert isinstance(store.enter(claim("d:0:0", key="slots", limit=3)).verdict, Busy)
    assert isinstance(store.leave(claim("b:0:0", key="slots"), Outcome.OVER).verdict, NotHeld)

    (dead,) = store.dead()
    assert (dead.key, dead.dead.task, dead.dead.cause) == ("dead", "b:0:0", Cause.UNREADABLE)
    assert store.apply(Replay("dead", "b:0:0")).verdict
    assert store.message("dead", "b:0:0") == _message("b:0:0")

    assert store.swap("unique", b"a claim", None, SECOND) is None
    assert store.notes("beat") == {"nightly": b"sent"}
    assert not store.note("beat", 6, {})
    modes = {holder.mode for holder in store.peek("read").holders}
    assert modes == {Mode.SHARED}


def publish(url: str) -> None:
    """Publish two tasks, one of which is woken at once, and the other one waits."""
    with shop(url) as (desk, charge, _):
        charge.apply_async((1,), {"amount": Decimal("9.99")}, task_id="first")
        charge.apply_async((2,), {"amount": Decimal("0.01")}, task_id="second", priority=3)
        assert desk.size() == 1


def run(url: str) -> None:
    """Both run, in their order, and have the results that were asked for."""
    with shop(url) as (desk, _, ran):
        desk.sweep()
        assert desk.deliver_all() == 2
        assert ran == [(1, Decimal("9.99")), (2, Decimal("0.01"))]
        assert [desk.result(name).result for name in ("first", "second")] == [1, 2]
        assert runtime(desk.app).backend.peek("order") == KeyState()


@contextmanager
def shop(url: str) -> Iterator[tuple[Desk, LockedTask, list[Any]]]:
    """An application with a task that waits in order, and is unique; and what ran of it."""
    ran = list[Any]()
    with open_desk(dlock_url=url, dlock_broker="shop") as desk:
        ordered = Ordered(max_wait=None)

        @desk.locked("order", name="charge", on_contention=ordered, unique="done")
        def charge(order: int, amount: Decimal) -> int:
            ran.append((order, amount))
            return order

        yield desk, charge, ran
        forget(desk.app)  # until then all lies in a file beside


def _park(store: NoteStore, key: str, *tasks: str) -> None:
    for task in tasks:
        waits = claim(task, key=key, wait=QUEUE, gives_up=FOR_EVER)
        assert store.enter(waits, _message(task)).verdict == Park()


def _message(task: str) -> bytes:
    return MESSAGE.format(task).encode()
