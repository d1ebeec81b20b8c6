"""Ages are by the store's clock: that of the host where somebody types may be wrong."""

from __future__ import annotations

import re
import time
import uuid

import pytest
import redis

from celery_dlock.core.lease import SECOND
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.overview import time_of
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.testing import ManualClock
from tests.cli.operator import Operator
from tests.services.redis import RedisServer


@pytest.fixture
def desk(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """At a store whose clock is years away from this host's, and has gone on by seven seconds."""
    clock = ManualClock()
    monkeypatch.setattr(desk.backend, "_now", clock)
    desk.dead_letter("order:43", "lost")
    desk.hold("order:42")
    desk.park("order:42", "waits")
    clock.advance(7)
    return desk


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls", r"order:42 +holder +7 s +53 s"),
        ("ls --watch", r"order:42 +holder +7 s +53 s"),
        ("show order:42", r"waits +7 s"),
        ("show order:42", r"holder has held it since .*lasts until"),
        ("show holder --task", r"holder: running"),
        ("show waits --task", r"behind holder, which has held it since .*1st of 1"),
        ("dead", r"lost .* 7 s"),
        ("metrics", r"dlock_oldest_hold_seconds 7\.0"),
        ("metrics", r"dlock_oldest_wait_seconds 7\.0"),
        ("release order:42 --yes", r"holder +7 s +53 s"),
    ],
)
def test_durations_are_told_by_the_stores_clock(desk: Operator, command: str, says: str) -> None:
    said = desk.run(*command.split())

    assert said.exit_code == 0, said.output
    assert re.search(says, said.stdout), said.stdout
    assert not re.search(r"expired| \d+ d ", said.stdout)


def test_programs_are_told_by_it_whether_a_lease_has_expired(desk: Operator) -> None:
    (line,) = desk.read("ls")["keys"]

    assert [holder["expired"] for holder in line["holders"]] == [False]


def test_while_it_cannot_be_asked_the_time_is_that_of_this_host(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> int:
        raise BackendUnavailable("TIME is not allowed")

    monkeypatch.setattr(desk.backend, "now", away)
    before = time.time()

    assert before <= time_of(desk.backend).timestamp() <= time.time()


@pytest.mark.server("redis")
def test_redis_tells_its_own_time(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_backend(redis_server.url, BackendOptions(prefix=uuid.uuid4().hex))
    with redis.Redis.from_url(redis_server.url) as client:

        def told() -> int:
            seconds, microseconds = client.time()
            return int(seconds) * SECOND + int(microseconds)

        before = told()
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        assert before <= store.now() <= told()
    store.close()
