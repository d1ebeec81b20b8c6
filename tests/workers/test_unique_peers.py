"""Beside the libraries that people come from: a deploy in which both run, with both bases.

The class that has ``LockedTask`` first and the other one's base behind it takes both claims where
a task is published, and ends both in the worker.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery_heimdall import AlreadyQueuedError, HeimdallTask
from celery_once import AlreadyQueued, QueueOnce
from celery_singleton import DuplicateTaskError, Singleton
from redis import Redis

from celery_dlock import DuplicateTask, LockedTask, Unique
from celery_dlock.messages.unique import UNIQUE
from tests.services.desk import Desk, open_desk
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

NUMBER = 9


class Heimdall(HeimdallTask):  # type: ignore[misc]
    """Which looks for its Redis at the result backend unless told."""

    abstract = True

    def setup_redis(self) -> Redis:
        return Redis.from_url(self.app.conf.singleton_backend_url)


#: The base of each, and its options: a duplicate gets the living one's result, or an error.
PEERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], Any]] = {
    "celery-once": (QueueOnce, {"once": {"graceful": True}}, {"once": {}}, AlreadyQueued),
    "celery-singleton": (Singleton, {}, {"raise_on_duplicate": True}, DuplicateTaskError),
    "celery-heimdall": (
        Heimdall,
        {"heimdall": {"unique": True}},
        {"heimdall": {"unique": True, "unique_raises": True}},
        AlreadyQueuedError,
    ),
}
EVERY = pytest.mark.parametrize("peer", PEERS)

Runs = list[int]


@pytest.fixture(name="desk")
def a_desk(redis_server: RedisServer, tmp_path: Path) -> Iterator[Desk]:
    url = f"redis://127.0.0.1:{redis_server.port}/{NUMBER}"
    with redis_server.client() as client:
        client.select(NUMBER)
        client.flushdb()
    with open_desk(singleton_backend_url=url, ONCE=once(tmp_path)) as desk:
        yield desk


def once(folder: Path) -> dict[str, Any]:
    settings = {"location": str(folder), "default_timeout": 3600}
    return {"backend": "celery_once.backends.File", "settings": settings}


@pytest.fixture
def runs() -> Runs:
    return []


def report_on(app: Celery, base: Any, runs: Runs, **options: Any) -> Any:
    @app.task(name="report", base=base, shared=False, **options)
    def report(day: int) -> None:
        runs.append(day)

    return report


def before(desk: Desk, peer: str) -> Any:
    """The task as the version before has it, in a process of its own."""
    app = Celery("before", broker="memory://", set_as_current=False)
    app.conf.update(desk.app.conf.changes)
    base, options, *_ = PEERS[peer]
    return report_on(app, base, [], **options)


def both(desk: Desk, peer: str, runs: Runs, unique: Any = "done") -> Any:
    """The task in the version of the deploy."""
    base, options, *_ = PEERS[peer]
    beside = type("Both", (LockedTask, base), {"abstract": True})
    return report_on(desk.app, beside, runs, lock_unique=unique, **options)


@EVERY
def test_a_worker_with_both_bases_ends_the_claim_of_a_publisher_of_before(
    desk: Desk, runs: Runs, peer: str
) -> None:
    both(desk, peer, runs)
    old = before(desk, peer)
    old.delay(1)
    old.delay(1)
    assert desk.size() == 1

    desk.deliver_all()

    old.delay(1)
    assert desk.deliver_all() == 1
    assert runs == [1, 1]


@EVERY
def test_a_publisher_with_both_bases_respects_what_one_of_before_has_published(
    desk: Desk, runs: Runs, peer: str
) -> None:
    new, old = both(desk, peer, runs), before(desk, peer)
    old.delay(1)

    again = new.delay(1)

    assert (again.is_duplicate, desk.size()) == (True, 1)
    desk.deliver_all()
    assert not new.delay(1).is_duplicate
    assert desk.deliver_all() == 1
    assert runs == [1, 1]


@EVERY
def test_one_of_before_respects_what_a_publisher_with_both_bases_has_published(
    desk: Desk, runs: Runs, peer: str
) -> None:
    new, old = both(desk, peer, runs), before(desk, peer)
    new.delay(1)

    old.delay(1)

    assert desk.size() == 1
    desk.deliver_all()
    assert runs == [1]


@EVERY
def test_without_the_other_base_the_claim_of_before_is_not_ended(
    desk: Desk, runs: Runs, peer: str
) -> None:
    """The trap: until its time is over nobody of before can publish."""
    new, old = report_on(desk.app, LockedTask, runs, lock_unique="done"), before(desk, peer)
    old.delay(1)
    desk.deliver_all()

    old.delay(1)

    assert desk.size() == 0
    assert not new.delay(1).is_duplicate


@EVERY
def test_the_error_of_before_and_ours(desk: Desk, runs: Runs, peer: str) -> None:
    base, _, raises, error = PEERS[peer]
    if peer == "celery-heimdall":
        desk.app.conf.heimdall_unique_raises = True
    old = report_on(desk.app, base, runs, **raises)
    old.delay(1)
    with pytest.raises(error):
        old.delay(1)
    desk.deliver_all()

    del desk.app.tasks["report"]
    new = report_on(desk.app, LockedTask, runs, lock_unique=Unique(on_duplicate="raise"))
    first = new.delay(1)
    with pytest.raises(DuplicateTask, match=first.id):
        new.delay(1)


# What they get wrong, and we do not: theirs frees whatever lies there, and keeps what nobody ends.

OURS_TOO = pytest.mark.parametrize("peer", [None, *PEERS])


def as_it_is(desk: Desk, runs: Runs, peer: str | None) -> Any:
    """The task with the base of *peer*, or ours."""
    if peer is None:
        return report_on(desk.app, LockedTask, runs, lock_unique="done")
    base, options, *_ = PEERS[peer]
    return report_on(desk.app, base, runs, **options)


@OURS_TOO
def test_a_copy_that_comes_late_frees_the_claim_of_another(
    desk: Desk, runs: Runs, peer: str | None
) -> None:
    report = as_it_is(desk, runs, peer)
    first = report.delay(1)
    message = desk.deliver()
    report.delay(1)
    second = desk.take()

    told = {UNIQUE: message.headers[UNIQUE]} if peer is None else None
    desk.app.send_task("report", (1,), task_id=first.id, headers=told)
    desk.deliver()
    report.delay(1)

    assert second is not None
    assert desk.size() == (0 if peer is None else 1)


@OURS_TOO
def test_a_message_that_has_expired_keeps_its_claim(
    desk: Desk, runs: Runs, peer: str | None
) -> None:
    report = as_it_is(desk, runs, peer)
    report.apply_async((1,), expires=-1)
    with pytest.raises(TaskRevokedError):
        desk.deliver()

    if peer is None:
        until("a call is published", lambda: not report.delay(1).is_duplicate)
    report.delay(1)

    assert desk.size() == (1 if peer is None else 0)
