"""Beside the libraries that people come from: a deploy in which both run, with both bases.

The class that has ``LockedTask`` first and the other one's base behind it takes both claims where
a task is published, and ends both in the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery_heimdall import HeimdallTask
from celery_once import QueueOnce
from celery_singleton import Singleton
from redis import Redis

from celery_dlock import LockedTask
from tests.services.desk import Desk, open_desk
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

NUMBER = 9


class Heimdall(HeimdallTask):  # type: ignore[misc]
    """Which looks for its Redis at the result backend unless told."""

    abstract = True

    def setup_redis(self) -> Redis:
        return Redis.from_url(self.app.conf.singleton_backend_url)


#: The base of each, and its options.
PEERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "celery-once": (QueueOnce, {"once": {"graceful": True}}),
    "celery-singleton": (Singleton, {}),
    "celery-heimdall": (Heimdall, {"heimdall": {"unique": True}}),
}
EVERY = pytest.mark.parametrize("peer", PEERS)


@pytest.fixture(name="desk")
def a_desk(redis_server: RedisServer, tmp_path: Path) -> Iterator[Desk]:
    url = f"redis://127.0.0.1:{redis_server.port}/{NUMBER}"
    with redis_server.client() as client:
        client.select(NUMBER)
        client.flushdb()
    settings = {"location": str(tmp_path), "default_timeout": 3600}
    once = {"backend": "celery_once.backends.File", "settings": settings}
    with open_desk(singleton_backend_url=url, ONCE=once) as desk:
        yield desk


def report_on(app: Celery, base: Any, ran: list[Any], **options: Any) -> Any:
    @app.task(name="report", base=base, shared=False, **options)
    def report(day: int) -> None:
        ran.append(day)

    return report


def before(desk: Desk, peer: str) -> Any:
    """The task as the version before has it, in a process of its own."""
    app = Celery("before", broker="memory://", set_as_current=False)
    app.conf.update(desk.app.conf.changes)
    base, options = PEERS[peer]
    return report_on(app, base, [], **options)


def both(desk: Desk, peer: str) -> Any:
    """The task in the version of the deploy."""
    base, options = PEERS[peer]
    beside = type("Both", (LockedTask, base), {"abstract": True})
    return report_on(desk.app, beside, desk.ran, lock_unique="done", **options)


@EVERY
def test_a_worker_ends_the_claim_of_an_older_publisher(desk: Desk, peer: str) -> None:
    both(desk, peer)
    old = before(desk, peer)
    old.delay(1)
    old.delay(1)
    assert desk.size() == 1

    desk.deliver_all()

    old.delay(1)
    assert desk.deliver_all() == 1
    assert desk.ran == [1, 1]


@EVERY
@pytest.mark.parametrize("first", ["before", "both"])
def test_each_respects_what_the_other_has_published(desk: Desk, peer: str, first: str) -> None:
    new, old = both(desk, peer), before(desk, peer)
    (old if first == "before" else new).delay(1)

    again = (new if first == "before" else old).delay(1)

    assert desk.size() == 1
    assert first == "both" or again.is_duplicate
    desk.deliver_all()
    assert not new.delay(1).is_duplicate
    assert desk.deliver_all() == 1
    assert desk.ran == [1, 1]


@pytest.mark.parametrize("version", ["before", "both"])
@pytest.mark.parametrize(
    ("peer", "runs"), [("celery-once", 2), ("celery-singleton", 1), ("celery-heimdall", 1)]
)
def test_a_retry_is_published_where_the_other_does_so(
    desk: Desk, peer: str, runs: int, version: str
) -> None:
    base, options = PEERS[peer]
    if version == "both":
        base = type("Both", (LockedTask, base), {"abstract": True})
        options = {**options, "lock_unique": "done"}

    @desk.app.task(name="report", base=base, bind=True, shared=False, **options)
    def report(self: Any, day: int) -> None:
        desk.ran.append(day)
        if not self.request.retries:
            raise self.retry(countdown=0)

    report.delay(1)
    desk.deliver_all()

    assert desk.ran == [1] * runs
