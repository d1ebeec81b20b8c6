"""What the worker's main process does with messages for a key that is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from celery_dlock import Limit, LockedTask, Ordered, Queue, Shared, lock
from celery_dlock.core.events import Dropped, Parked
from celery_dlock.core.state import Claim, Mode
from celery_dlock.delivery.taking import FOLLOWED, ToMain
from celery_dlock.worker.parking import (
    Batch,
    HeldBack,
    Parking,
    ParkWithoutSlot,
    _key,
    _queueing_of,
)
from celery_dlock.worker.request import LockedRequest
from tests.services.brokers import close, kept_in_redis, over_redis
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.turns import done, held, nothing_is_left, numbers, parked
from tests.services.unique import claims, without_answer

KEY = "order:42"


class Loop:
    """The worker's loop, a turn at a time: what it gave to the pool, and what it acknowledged."""

    def __init__(self, desk: Desk, task: LockedTask) -> None:
        self.desk, self.task = desk, task
        asks = _queueing_of(task, desk.app)
        assert asks is not None
        self.asks = asks
        self.parking = Parking(desk.app, (OSError,))
        self.pool: list[LockedRequest] = []
        self.acknowledged: list[int] = []
        Parking.current = self.parking

    def arrive(self, *numbers: int) -> None:
        for number in numbers:
            self.task.delay("42", number)
            self.hold_back(self.desk.channel.basic_get("celery"), number)

    def hold_back(self, message: Any, number: int, task: LockedTask | None = None) -> None:
        rest = (None, lambda *_: self.acknowledged.append(number), None, ())
        held_back = HeldBack(task or self.task, self.asks, message, self._handle, rest, None)
        self.parking.arrive(KEY, held_back)

    def somebody_waits(self) -> None:
        """The first to come waits for the key."""
        self.arrive(0)
        self.asked(0, waits=True)

    def _handle(self, message: Any, *_: Any) -> None:
        request = LockedRequest(message, app=self.desk.app, task=self.task)
        state.task_reserved(request)
        self.pool.append(request)

    def park(self) -> list[int]:
        """Let the thread do what it has to, and the loop see it; how many there were in each."""
        sizes = []
        while not self.parking._todo.empty():
            batch = self.parking._todo.get()
            assert isinstance(batch, Batch)
            sizes.append(len(batch.messages))
            self.parking._done.put(self.parking._park(batch))
            self.parking.parked()
        return sizes

    def in_pool(self) -> list[int]:
        return [request.args[1] for request in self.pool]

    def asked(self, number: int, *, waits: bool = False) -> None:
        (request,) = (r for r in self.pool if r.args[1] == number)
        self.parking.asked(request.request_dict["dlock_delivery"]["nonce"], waits=waits)


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention=Queue(max_waiting=5))
    def charge(order: str, number: int) -> None: ...

    return charge


@pytest.fixture
def loop(desk: Desk, charge: LockedTask) -> Iterator[Loop]:
    loop = Loop(desk, charge)
    yield loop
    _end(loop)


def _end(loop: Loop) -> None:
    for request in loop.pool:
        state.task_ready(request)
    Parking.current = None


def waiting(desk: Desk) -> list[str]:
    return [entry.task.split(":")[0] for entry in desk.store.peek(KEY).waiting]


def test_nothing_is_parked_here_before_somebody_waits(loop: Loop) -> None:
    loop.arrive(1, 2, 3)
    loop.asked(1)
    assert loop.in_pool() == [1, 2, 3]
    assert loop.park() == []
    assert all(FOLLOWED in r.request_dict["dlock_delivery"] for r in loop.pool)


def test_later_ones_are_parked_in_order_when_all_before_have_asked(desk: Desk, loop: Loop) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        loop.arrive(1, 2)
        loop.asked(2, waits=True)
        loop.arrive(3, 4, 5)
        assert loop.park() == [], "the first is about to ask"

        loop.asked(1)
        loop.arrive(6)
        assert loop.park() == [3, 1], "what comes meanwhile is parked in one go after that"

        assert (loop.in_pool(), loop.acknowledged) == ([1, 2], [3, 4, 5, 6])
        assert len(waiting(desk)) == 4
        assert [event.refused for event in desk.happened(Parked)] == [True] * 4


def test_no_function_is_asked_here_how_many_may_hold_the_key(desk: Desk) -> None:
    asked: list[int] = []

    def at_once(order: str, number: int) -> int:
        asked.append(number)
        return 3

    @desk.locked(Limit("order:{order}", at_once), name="load", on_contention=Queue())
    def load(order: str, number: int) -> None: ...

    loop = Loop(desk, load)
    for nonce in "12":
        desk.store.enter(Claim(KEY, f"{nonce}:0:0", nonce, 9_000_000, Mode.LIMITED, 2))
    loop.somebody_waits()
    loop.arrive(1, 2)

    assert sum(loop.park()) == 2

    found = desk.store.peek(KEY)
    _end(loop)
    assert (asked, [holder.limit for holder in found.holders], found.parked) == ([], [2, 2], 2)


def test_one_that_the_store_refuses_goes_to_the_pool(desk: Desk, loop: Loop) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        loop.somebody_waits()
        loop.arrive(*range(1, 9))  # where five may wait
        assert loop.park() == [1, 7]
        assert (loop.in_pool(), loop.acknowledged) == ([0, 6], [1, 2, 3, 4, 5])

        loop.asked(6)
        assert loop.park() == [2]
        assert loop.in_pool() == [0, 6, 7]


def test_with_an_unavailable_store_all_go_to_the_pool(desk: Desk, loop: Loop) -> None:
    loop.somebody_waits()
    desk.patch.setattr(desk.store, "apply", without_answer())
    loop.arrive(1, 2, 3)
    loop.park()
    assert (loop.in_pool(), loop.acknowledged) == ([0, 1, 2, 3], [])


def test_a_key_that_was_found_free_is_not_known_any_more(desk: Desk, loop: Loop) -> None:
    loop.somebody_waits()
    loop.arrive(1)
    assert loop.park() == [1]
    assert desk.size("celery") == 1, "it is woken at once"

    loop.arrive(2, 3)
    assert loop.park() == []
    assert loop.in_pool() == [0, 2, 3]


def test_a_duplicate_is_acknowledged(desk: Desk, loop: Loop, charge: LockedTask) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        first = charge.delay("42", 1)
        desk.deliver()
        loop.somebody_waits()
        charge.apply_async(("42", 1), task_id=first.id)
        loop.hold_back(desk.receive(), 1)
        loop.park()
        assert loop.acknowledged == [1]
        assert [event.reason for event in desk.happened(Dropped)] == ["waiting"]


def test_so_is_one_that_is_done_and_its_unique_claim_ends(desk: Desk, loop: Loop) -> None:
    @desk.locked("order:{order}", name="unique", unique="done", on_contention=Queue())
    def unique(order: str) -> None: ...

    unique.apply_async(("42",), task_id="one")
    desk.deliver()
    with lock(KEY, app=desk.app, timeout=0):
        loop.somebody_waits()
        unique.apply_async(("42",), task_id="one")
        assert claims(desk, unique, "42") is not None
        loop.hold_back(desk.receive(), 1, unique)
        loop.park()
    assert loop.acknowledged == [1]
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]
    assert claims(desk, unique, "42") is None


def test_what_ends_without_a_word_has_asked_and_of_a_quiet_key_nothing_is_kept(loop: Loop) -> None:
    loop.arrive(0, 1)
    loop.asked(0, waits=True)
    loop.arrive(2)
    loop.parking.look()
    assert loop.park() == [], "one has not asked"

    state.task_ready(loop.pool[1])
    loop.parking.look()
    assert loop.park() == [1]

    loop.parking.look()
    loop.parking.look()
    assert not loop.parking._lines
    assert not loop.parking._keys


def test_what_is_held_back_as_the_connection_ends_is_left_to_the_broker(loop: Loop) -> None:
    loop.arrive(0, 1)
    loop.asked(0, waits=True)
    loop.arrive(2)
    loop.parking.end()
    loop.asked(1)
    loop.parking.parked()
    assert (loop.in_pool(), loop.acknowledged) == ([0, 1], [])
    assert loop.parking._todo.get() is None


def test_what_the_thread_is_through_with_is_seen_though_it_could_not_say_so(loop: Loop) -> None:
    # Given a step, whose way is full of what children say
    parent: Any = SimpleNamespace(app=loop.desk.app)
    step = ParkWithoutSlot.__new__(ParkWithoutSlot)
    step.create(parent)
    try:
        loop.somebody_waits()
        loop.arrive(1)
        batch = loop.parking._todo.get()
        assert isinstance(batch, Batch)
        loop.parking._done.put(loop.parking._park(batch))
        ToMain.tell("of nobody", waits=False)

        step._hear()

        assert loop.acknowledged == [1]
    finally:
        assert ToMain.way is not None
        ToMain.way.close()
        step._read.close()
        ToMain.way = None


def test_other_messages_are_none_of_its(desk: Desk, charge: LockedTask) -> None:
    buckets: dict[str, Any] = defaultdict(lambda: None)

    def key_of(**options: Any) -> str | None:
        charge.apply_async(("42", 1), **options)
        return _key(charge, desk.channel.basic_get("celery"), buckets)

    assert key_of() == KEY
    assert key_of(countdown=60) is None
    assert key_of(expires=60) is None
    assert key_of(retries=1) is None
    assert key_of(headers={"dlock": {}}) is None
    charge.delay("42", 1)
    again: Any = desk.channel.basic_get("celery")
    again.delivery_info = {**again.delivery_info, "redelivered": True}
    assert _key(charge, again, buckets) is None
    desk.app.send_task("charge", ("42", 1, "of too many"))
    assert _key(charge, desk.channel.basic_get("celery"), buckets) is None
    charge.apply_async(("42", 1), task_id="revoked")
    state.revoked.add("revoked")
    try:
        assert _key(charge, desk.channel.basic_get("celery"), buckets) is None
    finally:
        state.revoked.discard("revoked")
    buckets[charge.name] = object()
    assert key_of() is None
    request: Any = type("R", (), {"message": object()})
    assert Parking(desk.app, ()).follow(request) == {}


@pytest.mark.parametrize(
    ("key", "options", "may"),
    [
        ("order:{order}", {"on_contention": "queue"}, True),
        ("order:{order}", {"on_contention": "replace"}, False),
        (None, {"on_contention": "queue"}, True),
        ("order:{order}", {"on_contention": "reschedule"}, False),
        ("order:{order}", {"on_contention": Ordered()}, False),
        ("order:{order}", {"on_contention": "queue", "track_started": True}, False),
        (["order:{order}", Shared("all")], {"on_contention": "queue"}, False),
        (["order:{order}", "all"], {"on_contention": "queue"}, False),
        (lambda order: f"order:{order}", {"on_contention": "queue"}, False),
    ],
)
def test_whose_messages_are(desk: Desk, key: Any, options: dict[str, Any], may: bool) -> None:
    @desk.locked(key=key, name="charge", **options)
    def charge(order: str) -> None: ...

    assert (_queueing_of(charge, desk.app) is not None) is may


@pytest.mark.server("redis")
def test_a_burst_takes_no_slots(redis_server: RedisServer, tmp_path: Path) -> None:
    celery = {**over_redis(redis_server.port), **kept_in_redis(redis_server.port)}
    lab = Lab(tmp_path, {"celery": celery, "lock": {"policy": "queue"}})
    with lab.worker("prefork", concurrency=2) as worker:
        # Given a key that is held, and one message that waits for it
        held(lab, "hot")
        apply = lab.app.tasks["apply"]
        sent = [apply.delay("hot", 1)]
        parked(lab, "hot", 1)

        # When many come at once
        sent += [apply.delay("hot", number) for number in range(2, 80)]
        parked(lab, "hot", 79)
        came = worker.log_path.read_text().count("received")
        lab.go("hot")

        assert done(sent) == list(range(1, 80))
        assert numbers(lab, "hot") == list(range(80))
        assert came < 40, "the line of a quiet key may have been forgotten in between, once"
        nothing_is_left(lab, "hot")
    close(lab.app)
