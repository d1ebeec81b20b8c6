"""A body that keeps its process from renewing loses its lock, unless it said so before."""

from __future__ import annotations

import ctypes
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.concurrency.solo import TaskPool

from celery_dlock import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    LockedTask,
    LockLost,
    Shared,
    lock,
)
from celery_dlock.core.events import Acquired, Event, Lost
from celery_dlock.core.state import Outcome
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import Trait
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.worker.startup import CheckAtStart
from tests.services.desk import Desk
from tests.services.stores import Store, at_the_desk
from tests.services.until import until
from tests.workers.conftest import charging

#: The leases of one of each can differ, and one has to have a majority of nodes extend it.
EACH = [
    row for row in at_the_desk("redlock") if Trait.LEASE_PER_TASK in row.values[0].backend.traits
]

TTL = 2.0


@pytest.mark.parametrize("store", EACH)
def test_a_block_has_its_lock_after_it_starved_its_renewals(
    request: pytest.FixtureRequest, tmp_path: Path, desk: Desk, store: Store
) -> None:
    desk.app.conf.update(store.settings(request, tmp_path))
    with lock(["a", Shared("all")], app=desk.app, ttl=TTL, timeout=0) as lease:
        lease.extend(6)
        ctypes.PyDLL(None).sleep(3)  # and nothing else of this process runs
        assert 2 < lease.remaining() < 3.1
        claims = [term.claim for term in lease.terms]
        until("they are renewed again", lambda: lease.remaining() < TTL, timeout=30)
        lease.check()
        assert len(desk.store.renew(claims)) == len(claims) == 2
    forget(desk.app)


def test_a_block_within_a_block_extends_what_it_needs(desk: Desk) -> None:
    with lock("a", app=desk.app, timeout=0) as outer:
        with lock(["a", "b"], app=desk.app, timeout=0) as inner:
            inner.extend(300)
            assert inner.remaining() > 299
        assert outer.remaining() > 299
        with pytest.raises(LockLost, match="released"):
            inner.extend(300)


#: By itself, in its message, or for all tasks: what bounds how long a task holds its key. The first
#: that is set counts.
BOUNDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "the limit of this call": ({"time_limit": 50}, {"task_time_limit": 50}, {"time_limit": 100}),
    "the limit of the task": ({"time_limit": 100}, {"task_time_limit": 50}, {}),
    "the limit of all tasks": ({}, {"task_time_limit": 100, "dlock_max_hold": 50}, {}),
    "dlock_max_hold": ({}, {"dlock_max_hold": 100}, {}),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_body_holds_its_key_for_its_hard_time_limit(desk: Desk, bound: str) -> None:
    options, config, call = BOUNDS[bound]
    desk.app.conf.update(config)

    @desk.locked("order:42", name="charge", **options)
    def charge(*, lease: Lease) -> None:
        lease.extend(90)
        with pytest.raises(ConfigurationError, match="goes beyond the task's hard time limit"):
            lease.extend(101)

    # Sent by its name alone: the message does not say what the task has
    publisher = Celery("publisher", broker="memory://", set_as_current=False)
    sent = publisher.send_task("charge", connection=desk.connection, **call)
    desk.deliver()

    assert desk.result(sent.id).get() is None


def test_a_body_whose_lock_is_gone_as_it_extends_it_runs_again(desk: Desk) -> None:
    @desk.locked("k", name="charge", bind=True)
    def charge(self: object) -> int:
        store = desk.store
        desk.ran.append(len(desk.ran))
        if len(desk.ran) == 1:
            store._keys.clear()  # type: ignore[attr-defined]
        self.lease.extend(10)  # type: ignore[attr-defined]
        return 7

    result = charge.delay()
    desk.deliver()
    assert result.state == "RETRY"
    desk.deliver()
    assert result.get() == 7


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has one lease for all locks of a process."""
    traits = MemoryBackend.traits - {Trait.LEASE_PER_TASK}
    monkeypatch.setattr(MemoryBackend, "traits", traits)


@pytest.mark.usefixtures("alike")
def test_where_all_leases_are_alike_the_longest_ttl_of_a_task_is_asked_for(desk: Desk) -> None:
    @desk.locked("k", name="long", ttl=60)
    def long() -> str:
        return "done"

    @desk.locked("k", name="short", ttl=10)
    def short() -> str:
        return "done"

    assert runtime(desk.app).options.ttl == 60
    assert (long(), short()) == ("done", "done")
    with lock("k", ttl=60, app=desk.app) as lease, pytest.raises(ConfigurationError, match="exten"):
        lease.extend(10)
    said = "ttl=61: all locks of a process end together in MemoryBackend, .* last for 60 s"
    with pytest.raises(ConfigurationError, match=said), lock("k", ttl=61, app=desk.app):
        pass


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("granted", [60.0, 40.0, None, BackendUnavailable("no answer")])
def test_a_worker_starts_only_where_the_store_grants_it(desk: Desk, granted: Any) -> None:
    @desk.locked("k", name="long", ttl=60)
    def long() -> None: ...

    tells = Mock(side_effect=[granted])
    desk.patch.setattr(MemoryBackend, "granted", tells)
    refused = pytest.raises(ConfigurationError, match=r"task long: ttl=60 .*: 40 s")

    with refused if granted == 40.0 else nullcontext():
        CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=TaskPool))

    tells.assert_called_once()


# A process that stood still, or was not told: what it notices before its body, and after it.


@pytest.fixture
def pauses(desk: Desk) -> list[str]:
    """Once, for an hour, when a lock was given; the key that it was."""
    went_by: list[str] = []
    clock = time.clock_gettime

    def stand_still(event: Event) -> None:
        if isinstance(event, Acquired) and not went_by:
            went_by.extend(event.keys)

    desk.patch.setattr(time, "clock_gettime", lambda which: clock(which) + 3600 * len(went_by))
    desk.app.conf.dlock_sinks = [*desk.app.conf.dlock_sinks, stand_still]
    return went_by


def test_a_task_goes_back_to_its_place_and_runs_then(desk: Desk, pauses: list[str]) -> None:
    result = charging(desk).delay("42")
    desk.deliver()

    assert pauses == ["order:42"]
    assert desk.ran == []
    assert result.state == "RETRY"
    desk.deliver()
    assert result.get() == "42"
    assert desk.store.peek("order:42").holders == ()


def test_a_call_and_a_block_raise(desk: Desk, pauses: list[str]) -> None:
    with pytest.raises(LockLost, match="not renewed in time"):
        charging(desk)("42")
    pauses.clear()
    with pytest.raises(LockLost), lock("order:42", app=desk.app):
        pytest.fail("somebody else may have the key")
    assert desk.holders("order:42") == desk.ran == []


def test_a_loss_that_shows_only_at_the_end_is_told_once(desk: Desk) -> None:
    told: list[tuple[str, ...]] = []

    class Alerting(LockedTask):
        abstract = True

        def on_lock_lost(self, lease: Lease, task_id: str, args: Any, kwargs: Any) -> None:
            told.append((lease.key, task_id, *args))

    @desk.locked("order:{order}", name="charge", base=Alerting)
    def charge(order: str, *, lease: Lease) -> str:
        (term,) = lease.terms
        desk.store.leave(term.claim, Outcome.OVER)  # as a store that forgot it
        return "charged"

    result = charge.delay("42")
    desk.deliver()

    assert result.get() == "charged"
    assert told == [("order:42", result.id, "42")]
    assert [event.key for event in desk.happened(Lost)] == ["order:42"]
