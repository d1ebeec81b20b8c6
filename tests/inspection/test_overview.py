"""What is read of keys and queues: bounded, in order, and without an effect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from celery import Celery

from celery_dlock.beat.leader import Leader, Status, key_of
from celery_dlock.core.debounce import DEBOUNCED
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import Postpone
from celery_dlock.core.state import WINDOW, Claim, KeyState, Outcome, Run, WaitMode
from celery_dlock.locks.probe import NOBODYS
from celery_dlock.ops import overview
from celery_dlock.ops.gauges import Gauges
from celery_dlock.ops.overview import KeyDetails, line, page
from celery_dlock.ops.urgent import Snapshot, most_urgent
from celery_dlock.stores.base import KeyPage, LockBackend
from celery_dlock.testing import ManualClock

A_MINUTE = 60 * SECOND


def hold(store: LockBackend, key: str, task: str = "holder") -> Claim:
    claim = Claim(key, f"{task}:0:0", "nonce", ttl=A_MINUTE)
    assert isinstance(store.enter(claim).verdict, Run)
    return claim


def park(store: LockBackend, key: str, task: str) -> None:
    store.enter(Claim(key, f"{task}:0:0", "nonce", ttl=A_MINUTE, wait=WaitMode.QUEUE), b"message")


def test_who_looks_wakes_nobody(app: Celery, store: LockBackend, clock: ManualClock) -> None:
    """Who is called and not published is called again seconds later: it would wait for that."""
    hold(store, "order:42")
    park(store, "order:42", "next")
    clock.advance(61)
    before = store.peek("order:42")

    line(app, "order:42")
    page(app)
    most_urgent(app)
    most_urgent(app, waiting=True)
    Snapshot.of(app, 100)
    KeyDetails.of(app, "order:42")
    KeyDetails.of(app, "order:42", limit=1000)

    assert store.peek("order:42") == before
    assert [wake.task for wake in store.reap("order:42").wakes] == ["next:0:0"]


def test_those_come_first_that_are_waited_for_longest_and_then_those_held_longest(
    app: Celery, store: LockBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "BATCH", 2)
    for key in ("held early", "waited for late", "held late", "waited for early"):
        hold(store, key)
        clock.advance(1)
    park(store, "waited for early", "one")
    clock.advance(1)
    park(store, "waited for late", "two")

    found = most_urgent(app, limit=3)

    assert [each.key for each in found.lines] == [
        "waited for early",
        "waited for late",
        "held early",
    ]
    assert found.counts.keys == 4
    assert most_urgent(app, limit=None).lines[:3] == found.lines
    assert [each.key for each in most_urgent(app, match="late").lines] == [
        "waited for late",
        "held late",
    ]
    assert [each.key for each in most_urgent(app, waiting=True).lines] == [
        "waited for early",
        "waited for late",
    ]


def ask(
    store: LockBackend, key: str, *tasks: str, nonce: str = "n", patience: int = A_MINUTE
) -> None:
    """Each of *tasks* asks, and is going to ask again by itself."""
    for task in tasks:
        mine = Claim(key, f"{task}:0:0", nonce, A_MINUTE, wait=WaitMode.PLACE, patience=patience)
        store.enter(mine)


def test_who_asks_again_by_itself_is_counted_and_since_it_first_asked(
    app: Celery, store: LockBackend, clock: ManualClock
) -> None:
    hold(store, "order:1")
    hold(store, "order:2")
    ask(store, "order:2", "back", nonce="first")
    first = clock()
    clock.advance(20)
    ask(store, "order:2", "back", nonce="second")
    park(store, "order:2", "parked")
    clock.advance(5)

    one = line(app, "order:2")
    found, urgent = most_urgent(app, waiting=True), most_urgent(app)
    near = KeyDetails.of(app, "order:2")

    assert (one.waiting, one.oldest, one.more_wait) == (2, overview.instant(first), False)
    assert (found.lines, found.counts.waiting, found.counts.keys) == ((one,), 2, 1)
    assert urgent.lines[0] == one
    assert (near.queue[0].task_id, near.queue[0].arrived) == ("back", one.oldest)
    assert Snapshot.of(app, 100).counts == urgent.counts
    gauges = Gauges.of(app)
    assert (gauges.waiting_keys, gauges.waiting_tasks, gauges.oldest_wait) == (1, 2, 25.0)


def test_a_call_that_is_debounced_waits_for_nobody_until_it_is_due(
    app: Celery, store: LockBackend, clock: ManualClock
) -> None:
    hold(store, "order:1")
    newest = Claim(f"{DEBOUNCED}order:2", "call:0:0", "n", ttl=A_MINUTE, wait=WaitMode.ENQUEUE)
    store.apply(Postpone(newest, b"message", delay=A_MINUTE, max_delay=10 * A_MINUTE))
    clock.advance(30)

    found = most_urgent(app)

    assert [each.key for each in found.lines] == ["order:1", f"{DEBOUNCED}order:2"]
    assert (found.counts.waiting, found.counts.oldest) == (0, None)
    assert most_urgent(app, waiting=True).lines == ()
    gauges = Gauges.of(app)
    assert (gauges.waiting_tasks, gauges.oldest_wait) == (0, 0.0)


def test_the_oldest_hold_is_the_first_whose_lease_lasts(
    app: Celery, store: LockBackend, clock: ManualClock
) -> None:
    assert Gauges.of(app).oldest_hold == 0.0
    leads, lapses, lasts = key_of(app), "order:1", "order:2"
    for key in (leads, lapses, lasts):
        held = hold(store, key)
        clock.advance(10)
    for _ in range(3):
        clock.advance(30)
        store.renew([held])
    hold(store, "order:3")

    gauges = Gauges.of(app)

    assert gauges.held_keys == 2
    assert gauges.oldest_hold == 100.0


def test_a_standby_is_no_waiting_task(app: Celery, store: LockBackend, clock: ManualClock) -> None:
    leads, stands_by = hold(store, key_of(app), "leads"), Leader(app)
    for _ in range(16 * 60 // 4):
        assert not stands_by.campaign()
        clock.advance(4)
        store.renew([leads])
    assert not stands_by.campaign()
    hold(store, "order:1")
    park(store, "order:1", "waits")
    clock.advance(3)

    found, gauges = most_urgent(app), Gauges.of(app)

    assert [each.key for each in found.lines] == ["order:1"]
    assert (found.counts.keys, found.counts.held, found.counts.waiting) == (1, 1, 1)
    assert Snapshot.of(app, 100).counts == found.counts
    assert [each.key for each in page(app).lines] == ["order:1"]
    assert (gauges.held_keys, gauges.waiting_keys, gauges.waiting_tasks) == (1, 1, 1)
    assert gauges.oldest_wait == 3.0
    assert Status.of(app).standbys == (stands_by.who,)


def test_of_very_many_who_ask_again_by_themselves_it_is_said_that_there_are_more(
    app: Celery, store: LockBackend, clock: ManualClock
) -> None:
    hold(store, "order:1")
    ask(store, "order:1", *(f"task{n}" for n in range(WINDOW - 1)))
    assert (line(app, "order:1").waiting, line(app, "order:1").more_wait) == (WINDOW - 1, False)

    ask(store, "order:1", "last")
    ask(store, "order:1", *(f"more{n}" for n in range(9)), patience=SECOND)
    park(store, "order:1", "parked")

    assert (line(app, "order:1").waiting, line(app, "order:1").more_wait) == (WINDOW + 1, True)
    assert len(KeyDetails.of(app, "order:1", 100).queue) == WINDOW + 10
    clock.advance(2)
    assert len(KeyDetails.of(app, "order:1", 100).queue) == WINDOW + 1


def test_a_snapshot_looks_at_so_many_keys_and_those_with_messages_are_among_them(
    app: Celery, store: LockBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "BATCH", 10)
    for number in range(100):
        hold(store, f"order:{number:02}")
    for number in (30, 70, 90):
        park(store, f"order:{number}", "waits")
    looked: list[str] = []
    look = store.look

    def noted(keys: Sequence[str]) -> list[KeyState]:
        looked.extend(keys)
        return look(keys)

    monkeypatch.setattr(store, "look", noted)

    found = Snapshot.of(app, most=20)

    assert [each.key for each in found.lines[:3]] == ["order:30", "order:70", "order:90"]
    assert len(found.lines) == found.counts.keys == len(set(looked) - {NOBODYS}) == 23
    assert (found.counts.waiting, found.counts.held) == (3, 23)
    seen, cursor = {each.key for each in found.lines}, found.rest
    while cursor is not None:
        rest = page(app, cursor, 10)
        seen |= {each.key for each in rest.lines}
        cursor = rest.cursor
    assert len(seen) == 100
    assert Snapshot.of(app, 100).rest is None


def test_a_key_that_is_told_twice_is_listed_once(
    app: Celery, store: LockBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(store, "order:1")
    hold(store, "order:2")
    pages = {
        "": KeyPage(("order:1", "order:1", "order:2"), "more"),
        "more": KeyPage(("order:2", "idle"), None),
    }
    monkeypatch.setattr(store, "keys", lambda cursor, *_, **__: pages[cursor])

    found = most_urgent(app)

    assert (found.counts.keys, [each.key for each in found.lines]) == (2, ["order:1", "order:2"])


def test_a_long_queue_is_shown_in_part_and_counted(app: Celery, store: LockBackend) -> None:
    held = hold(store, "order:42")
    for number in range(50):
        park(store, "order:42", f"task-{number:02}")

    for limit in (1, 32, 33, 50, 99):
        near = KeyDetails.of(app, "order:42", limit)
        assert [each.task_id for each in near.queue] == [
            f"task-{number:02}" for number in range(min(limit, 50))
        ]
        assert len(near.queue) + near.behind == 50

    store.leave(held, Outcome.DONE)
    for limit in (5, 60):
        near = KeyDetails.of(app, "order:42", limit)
        assert (near.queue[0].task_id, near.queue[0].woken) == ("task-00", True)
        assert len(near.queue) + near.behind == 50


def test_a_running_tasks_kept_message_does_not_wait(app: Celery, store: LockBackend) -> None:
    kept = Claim("order:42", "runs:0:0", "n", ttl=A_MINUTE, wait=WaitMode.QUEUE, keep=True)
    assert isinstance(store.enter(kept, b"message").verdict, Run)
    park(store, "order:42", "waits")

    for limit in (10, 100):
        near = KeyDetails.of(app, "order:42", limit)
        assert [each.task_id for each in near.queue] == ["waits"]
        assert (near.behind, near.line.waiting) == (0, 1)
