"""A message that waits in the store and comes back, looked at part by part."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from celery import Celery
from celery.exceptions import Retry, SoftTimeLimitExceeded
from celery.states import RETRY
from kombu.message import Message

from celery_dlock import LockedTask, LockTimeout, Ordered, Queue, Reschedule, lock
from celery_dlock.core.events import TimedOut, Woken
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.state import WAKES_RESERVED
from celery_dlock.core.turns import UNATTENDED
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.waking import Waker
from celery_dlock.operate import held
from celery_dlock.ops.gauges import Gauges
from celery_dlock.policies import Policy
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import BackendOptions, Reply, Swept, Trait, Wake
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import claim, running
from celery_dlock.worker import periodic
from celery_dlock.worker.periodic import LONGEST_SLEEP, Sweeper
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk
from tests.services.redis import RedisServer
from tests.services.stores import STORES, Store
from tests.services.until import until
from tests.workers.conftest import MakeLab, charging, refused

KEY = "order:42"


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    desk.app.conf.accept_content = ["json", "yaml", "pickle"]

    @desk.locked("order:{order}", name="charge", on_contention="queue", max_retries=0)
    def charge(order: object, before: int = 0) -> int:
        return before + 1

    return charge


def sound(desk: Desk, charge: LockedTask) -> Wake:
    """Have a message wait, and be woken; its wake."""
    charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        ((task, message),) = desk.store._keys[KEY].messages.items()  # type: ignore[attr-defined]
    return Wake(KEY, task, message)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_woken_message_is_written_for_the_store_only_if_it_has_it_no_more(
    desk: Desk, charge: LockedTask, forgotten: bool
) -> None:
    task = sound(desk, charge).task
    written: list[bytes] = []
    encode = ParkedMessage.encode

    def noted(entry: ParkedMessage, more: dict[str, object]) -> bytes:
        written.append(encode(entry, more))
        return written[-1]

    desk.patch.setattr(ParkedMessage, "encode", noted)
    if not forgotten:
        assert desk.deliver().acknowledged
        assert (written, desk.holders(KEY)) == ([], [])
        return
    desk.store._keys.clear()  # type: ignore[attr-defined]
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        assert [desk.store.message(KEY, task)] == written


def test_the_event_says_where_and_how_often_in_vain(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",), queue="slow")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver("slow")
    here = runtime(desk.app)
    (grant,) = here.backend.peek(KEY).grants
    message = here.backend.message(KEY, grant.task)
    assert message is not None

    here.wake([Wake(KEY, grant.task, message, woken=3)])

    woken = [(event.queue, event.before) for event in desk.happened(Woken)]
    assert woken == [("slow.woken", 0), ("slow", 2)]


def test_a_countdown_is_over_once_it_has_waited(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",), countdown=60)

    _, again = refused(desk)

    assert again.headers["eta"] is None


def test_one_message_that_cannot_be_read_does_not_stop_the_others(
    desk: Desk, charge: LockedTask, caplog: pytest.LogCaptureFixture
) -> None:
    own = sound(desk, charge)
    desk.take()

    runtime(desk.app).wake([Wake(KEY, "spoilt:0:0", b"nonsense"), own])

    assert desk.size() == 1
    assert "spoilt:0:0" in caplog.text


NEWER = b'{"schema": 99}\n[]'


def test_a_message_of_another_version_is_noted_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        runtime(desk.app).wake([Wake(KEY, "id:0:0", NEWER), Wake(KEY, "other:0:0", NEWER)])
    assert caplog.text.count("id:0:0 waits for order:42") == 1
    assert caplog.text.count("other:0:0 waits for order:42") == 1


class CallsOthers(MemoryBackend):
    """Whenever a message is handed back, both are due: the store is slow."""

    both: tuple[Wake, ...] = ()

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return Reply(True, self.both)


def test_who_is_woken_by_a_hand_back_is_published(desk: Desk, charge: LockedTask) -> None:
    # Given a store that calls a sound message as another one is handed back, and that one again
    own, newer = sound(desk, charge), Wake(KEY, "newer:0:0", NEWER)
    desk.take()
    store = CallsOthers.from_url("memory://", BackendOptions())
    store.both = (own, newer)

    # When it is handed back, Then the sound one is published, once
    assert Waker(desk.app, store, Sinks())([newer]) == 1
    assert desk.size() == 1


def test_a_sweep_of_others_is_followed_by_a_long_sleep(desk: Desk, charge: LockedTask) -> None:
    own, newer = sound(desk, charge), Wake(KEY, "newer:0:0", NEWER)

    def sleeps_after(*wakes: Wake) -> float:
        backend = desk.store
        desk.patch.setattr(backend, "sweep", lambda: Swept(wakes, 0.25))
        return Sweeper(SimpleNamespace(app=desk.app)).run_once()

    assert sleeps_after() == 0.25
    assert sleeps_after(own, newer) == 0.25
    assert sleeps_after(newer) == LONGEST_SLEEP


@pytest.mark.parametrize(("policy", "looks"), [(Ordered(), 2), (Queue(), 1)], ids=repr)
def test_a_worker_looks_for_what_is_due_as_soon_as_a_retry_waits_in_the_store(
    desk: Desk, policy: Policy, looks: int
) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str) -> None: ...

    charge.delay("42")
    message = desk.receive()
    request = LockedRequest(message, app=desk.app, eventer=desk.eventer, task=charge)
    looked: list[float] = []
    sweeper = Sweeper(SimpleNamespace(app=desk.app))

    def look() -> float:
        looked.append(time.monotonic())
        return 600.0

    desk.patch.setattr(sweeper, "run_once", look)
    sweeper.start(None)
    until("it has looked once", lambda: looked)
    request.on_retry(SimpleNamespace(exception=Retry("in a second"), traceback=""))
    try:
        until("it has looked again", lambda: len(looked) == looks)
    finally:
        sweeper.stop(None)
    sweeper._thread.join(60)
    assert (len(looked), sweeper._thread.is_alive()) == (looks, False)


@pytest.mark.parametrize(
    "store", [each.param() for each in STORES if Trait.LEASE_PER_TASK in each.backend.traits]
)
def test_a_holder_that_has_died_goes_though_nobody_asks_for_its_key(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(store.settings(request, tmp_path))
    sweeper, backend = Sweeper(SimpleNamespace(app=app)), runtime(app).backend
    running(backend.enter(claim("dead", key=KEY, ttl=1)))
    lives = running(backend.enter(claim("lives", key="order:43", ttl=60)))

    def is_gone() -> bool:
        sweeper._check_writes_at = 0.0
        sweeper.run_once()
        return not backend.peek(KEY).holders

    until("it is gone", is_gone)
    assert Gauges.of(app).held_keys == 1
    assert [holder.token for holder in held("order:43", app=app)] == [lives.token]
    forget(app)


def test_an_unavailable_store_is_told_once(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    backend = desk.store
    sound, away = backend.sweep, mock.Mock(side_effect=BackendUnavailable("nobody is there"))
    sweeper = Sweeper(SimpleNamespace(app=desk.app))

    for sweep in (sound, away, away, away, sound, sound):
        desk.patch.setattr(backend, "sweep", sweep)
        sweeper._next_in()

    assert [record.getMessage() for record in caplog.records] == [
        "the lock store is unavailable: nobody is there",
        "the lock store is available again, after 0 s",
    ]


def test_a_soft_time_limit_that_strikes_here_passes_through(desk: Desk, charge: LockedTask) -> None:
    here = runtime(desk.app)
    struck = mock.Mock(side_effect=SoftTimeLimitExceeded(1))
    desk.patch.setattr(here.wake, "_publish", struck)
    charge.delay("42")
    with pytest.raises(SoftTimeLimitExceeded), lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
    assert here.backend.peek(KEY).holders == (), "the call is repeated by a sweep"


def test_a_message_that_nobody_takes_is_told_of_once_and_counted(
    desk: Desk, clock: ManualClock, charge: LockedTask, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper = Sweeper(SimpleNamespace(app=desk.app))
    with lock(KEY, app=desk.app, timeout=0):
        result = charge.apply_async(("42",), queue="renamed")
        desk.deliver("renamed")
    assert Gauges.of(desk.app).unanswered_messages == 0

    for _ in range(WAKES_RESERVED + 2):
        clock.advance(desk.store.sweep().next_in or 0)
        sweeper.run_once()

    (told,) = [line for line in caplog.messages if "no worker took it" in line]
    assert result.id in told
    assert "renamed" in told
    assert Gauges.of(desk.app).unanswered_messages == 1
    with lock(KEY, app=desk.app, timeout=0):
        pass  # it is free for others


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("refuse", "allow", "reason"),
    [
        (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"], "read only replica"),
        (*(["CONFIG", "SET", "min-replicas-to-write", n] for n in "10"), "NOREPLICAS"),
        (*(["CONFIG", "SET", "maxmemory", n] for n in "10"), "maxmemory"),
    ],
    ids=["replica", "too few replicas", "no memory"],
)
def test_a_store_that_answers_and_refuses_writes_is_told_and_that_it_is_back(
    own_redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuse: list[str],
    allow: list[str],
    reason: str,
) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.dlock_url = own_redis_server.url
    sweeper = Sweeper(SimpleNamespace(app=app))
    with own_redis_server.client() as client, closing(runtime(app).backend):
        sweeper.run_once()
        assert client.dbsize() == 0  # nothing of it stays

        # When it refuses writes, a sweep that finds nothing succeeds all the same
        client.execute_command(*refuse)
        sweeper.run_once()
        assert caplog.records == []
        monkeypatch.setattr(periodic, "CHECK_WRITES_EVERY", 0.0)
        sweeper._check_writes_at = 0.0
        for _ in range(3):
            sweeper._next_in()
        client.execute_command(*allow)
        sweeper._next_in()

    trouble, over = [record.getMessage() for record in caplog.records]
    assert trouble.startswith("the lock store is unavailable: ")
    assert reason in trouble
    assert over == "the lock store is available again, after 0 s"


# Time in which no worker was there is not waited: ``max_wait`` fails nobody at a restart.


HOUR = 3600.0
GRACE = UNATTENDED / 1_000_000


def later(message: Message, seconds: float) -> Message:
    """*message* as it would be, were it delivered so much later."""
    past = message.headers["dlock"]
    for instant in ("since", "expected"):
        if past.get(instant) is not None:
            past[instant] -= seconds
    return message


def charge_within_ten_minutes(desk: Desk) -> LockedTask:
    return charging(desk, on_contention=Reschedule(max_wait=600))


def refused_again(desk: Desk, message: Message) -> Message | None:
    """Run *message* while the key is held; what is published for it, if it has not failed."""
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(message)
    return desk.take()


def test_what_lay_in_the_broker_without_a_worker_has_not_waited_meanwhile(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    result = charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)

    for _ in range(3):  # nights
        assert again is not None, "it has failed"
        again = refused_again(desk, later(again, 10 * HOUR))

    assert desk.happened(TimedOut) == []
    assert again is not None
    desk.run(later(again, 10 * HOUR))
    assert result.get() == "42"


def test_what_was_taken_as_soon_as_it_was_due_has_waited_for_all_the_time(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    result = charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    steps = 0
    while again is not None:
        steps += 1
        again = refused_again(desk, later(again, GRACE - 5))

    with pytest.raises(LockTimeout):
        result.get()
    assert steps == pytest.approx(600 / (GRACE - 5), abs=1)


def test_what_was_late_before_it_was_refused_is_patient_from_its_refusal_on(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    assert again is not None
    again.headers["dlock"] |= {"since": None, "expected": time.time() - HOUR}
    again = refused_again(desk, again)
    assert again is not None
    again.headers["dlock"]["since"] -= 601

    assert refused_again(desk, again) is None

    assert len(desk.happened(TimedOut)) == 1


def test_what_was_parked_has_waited_whenever_it_was_expected_before(desk: Desk) -> None:
    charge = charge_within_ten_minutes(desk)
    charge.delay(order="42")
    again: Message | None
    _, again = refused(desk)
    assert again is not None
    again.headers["dlock"] |= {"called": time.time(), "key": "order:42"}

    assert refused_again(desk, later(again, HOUR)) is None

    assert len(desk.happened(TimedOut)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reschedule for a while", "queue for a while"])
def test_nobody_fails_at_the_restart_after_longer_than_they_would_wait(
    make_lab: MakeLab, policy: str
) -> None:
    # Given ten tasks that wait for an order, and no workers for longer than that
    lab = make_lab(lock={"policy": policy, "ttl": 2.0}, unattended=2_000_000)
    apply = lab.app.tasks["apply"]
    with lock("order:42", app=lab.app), lab.worker(concurrency=2) as worker:
        sent = [apply.delay("42", number) for number in range(10)]
        backend = runtime(lab.app).backend
        until(
            "all were refused",
            lambda: (
                all(result.state == RETRY for result in sent)
                or backend.peek("order:42").parked == len(sent)
            ),
        )
        worker.stop()
    gone = time.monotonic()
    until("they have waited for too long", lambda: time.monotonic() > gone + 18)
    assert not any(result.ready() for result in sent)

    # When the workers are back
    with lab.worker(concurrency=2):
        found = sorted(result.get(timeout=60) for result in sent)

    assert found == list(range(10))
