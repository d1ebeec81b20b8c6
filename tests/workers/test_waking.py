"""A message that waits in the store and comes back, looked at part by part."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from unittest import mock

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Woken
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.state import WAKES_RESERVED
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.waking import Waker
from celery_dlock.ops.gauges import Gauges
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import BackendOptions, Reply, Swept, Wake
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from celery_dlock.worker import periodic
from celery_dlock.worker.periodic import LONGEST_SLEEP, Sweeper
from tests.services.desk import Desk
from tests.services.redis import RedisServer
from tests.workers.conftest import refused

KEY = "order:42"


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    desk.app.conf.accept_content = ["json", "yaml", "pickle"]

    @desk.locked("order:{order}", name="charge", on_contention="queue", max_retries=0)
    def charge(order: object, before: int = 0) -> int:
        return before + 1

    return charge


def test_the_event_says_where_it_was_sent_and_how_often_in_vain_before(
    desk: Desk, charge: LockedTask
) -> None:
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
    charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        store = desk.store
        message = store._keys[KEY].messages.copy()  # type: ignore[attr-defined]
    desk.take()
    ((task, sound),) = message.items()

    runtime(desk.app).wake([Wake(KEY, "spoilt:0:0", b"nonsense"), Wake(KEY, task, sound)])

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


def test_who_is_woken_when_a_message_is_handed_back_is_published_and_nobody_for_ever(
    desk: Desk, charge: LockedTask
) -> None:
    # Given a store that calls a sound message as another one is handed back, and that one again
    charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        parked = desk.store._keys[KEY].messages  # type: ignore[attr-defined]
        ((task, sound),) = parked.items()
    desk.take()
    store = CallsOthers.from_url("memory://", BackendOptions())
    store.both = (Wake(KEY, task, sound), Wake(KEY, "newer:0:0", NEWER))

    # When it is handed back, Then the sound one is published, once
    assert Waker(desk.app, store, Sinks())([Wake(KEY, "newer:0:0", NEWER)]) == 1
    assert desk.size() == 1


def test_a_sweep_is_followed_by_a_long_sleep_only_when_all_it_found_was_for_others(
    desk: Desk, charge: LockedTask
) -> None:
    charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        parked = desk.store._keys[KEY].messages  # type: ignore[attr-defined]
        ((task, sound),) = parked.items()
    own, newer = Wake(KEY, task, sound), Wake(KEY, "newer:0:0", NEWER)

    def sleeps_after(*wakes: Wake) -> float:
        backend = desk.store
        desk.patch.setattr(backend, "sweep", lambda: Swept(wakes, 0.25))
        return Sweeper(SimpleNamespace(app=desk.app)).run_once()

    assert sleeps_after() == 0.25
    assert sleeps_after(own, newer) == 0.25
    assert sleeps_after(newer) == LONGEST_SLEEP


def test_a_store_that_is_away_for_many_sweeps_is_told_once_and_that_it_is_back(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
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
    def struck(*_: object, **__: object) -> None:
        raise SoftTimeLimitExceeded(1)

    here = runtime(desk.app)
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
