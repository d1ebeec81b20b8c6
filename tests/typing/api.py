"""The public types, pinned: mypy and pyright read this file, nobody runs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, assert_type

from celery_dlock import (
    INJECTED,
    BackendUnavailable,
    ConfigurationError,
    DLockError,
    Fail,
    FullJitter,
    Lease,
    Limit,
    LockContended,
    LockedTask,
    LockLost,
    LockTimeout,
    Reschedule,
    Shared,
    Skip,
    StaleFencingToken,
    Wait,
    current_lease,
    fencing,
    idempotency_key,
    lock,
    locked_task,
    testing,
)
from celery_dlock.fencing import redis as redis_fence
from celery_dlock.policies import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    HolderInfo,
    Policy,
    RunLater,
    WaitHere,
)

app: Any = None  # a Celery, which has no types


def target_key(source: str, target: str) -> str:
    return f"to:{target}"


@locked_task
def bare() -> None: ...


@locked_task(Limit("order:{order_id}", 2), app=app, ttl=30, acks_late=True)
def charge(order_id: int, *, fencing_token: int = INJECTED) -> str:
    return str(fencing_token)


@locked_task(["order:{order_id}", Shared("orders"), Shared(target_key)], on_lost="abort")
def below(order_id: int, *, fencing_token: int = INJECTED) -> None: ...


@locked_task(["from:{source}", target_key], on_contention=Skip())
def transfer(source: str, target: str, *, lease: Lease = INJECTED) -> None:
    assert_type(lease.key, str)
    assert_type(lease.keys, tuple[str, ...])
    assert_type(lease.owner, str)
    assert_type(lease.guarantee, str)
    assert_type(lease.fencing_token, int)
    assert_type(lease.fencing_tokens, Mapping[str, int])
    assert_type(lease.ttl, float)
    assert_type(lease.remaining(), float)
    assert_type(lease.lost, bool)
    assert_type(lease.check(), None)
    assert_type(lease.extend(120), None)


@locked_task([Limit("tenant:{tenant}", 3), Limit(target_key, 20, cooldown=60), Shared("c"), "o"])
def load(tenant: str, *, lease: Lease = INJECTED) -> None: ...


def at_once(tenant: str) -> int:
    return 3


@locked_task([Limit("tenant:{tenant}", at_once), Limit("all", 20)])
def by_plan(tenant: str) -> None: ...


@locked_task(Limit("tenant:{tenant}", at_once))
def alike(tenant: str) -> None: ...


@locked_task("order:{order_id}", app=app)
def without_the_default(order_id: int, *, fencing_token: int) -> None: ...


class Alerting(LockedTask):
    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        assert_type(self.lease, Lease)


assert_type(bare, LockedTask[[], None])
assert_type(charge(42), str)
assert_type(below(42), None)
assert_type(transfer("a", "b"), None)
assert_type(load("t"), None)
typed: LockedTask = charge
untyped: Callable[[Callable[..., Any]], LockedTask] = locked_task(Limit("key", 3))
without_the_default(42)  # type: ignore[call-arg]  # mypy; to pyright it is called with anything
assert_type(current_lease(), Lease)
assert_type(idempotency_key("charge"), str)
by_hand = lock("order:42", app=app, timeout=5)
assert_type(by_hand.acquire(), Lease)
by_hand.release()
assert_type(by_hand.locked(), bool)
assert_type(current_lease(default=None), Lease | None)
assert_type(current_lease(None), Lease | None)
plain: AbstractContextManager[Lease] = lock("order:42", app=app, timeout=5)
without_blocking: AbstractAsyncContextManager[Lease] = lock("order:42")
with lock(["a", "b", Shared("c")], ttl=10) as held:
    assert_type(held, Lease)
    assert_type(held.uncertain, bool)


with lock([Limit("a", 3), Shared("b"), "c"], timeout=0) as held:
    assert_type(held, Lease)


class Mine:
    """A policy by its shape, without a base class."""

    def decide(self, contention: Contention) -> Decision:
        assert_type(contention.key, str)
        assert_type(contention.task_id, str)
        assert_type(contention.attempt, int)
        assert_type(contention.waited, float)
        assert_type(contention.waiting, int)
        assert_type(contention.full, bool)
        assert_type(contention.opens_in, float)
        assert_type(contention.hold, str)
        assert_type(contention.holder, HolderInfo | None)
        if contention.holder is None:
            return RunLater(countdown=1)
        assert_type(contention.holder.task_id, str)
        assert_type(contention.holder.since, float)
        assert_type(contention.holder.seconds_left, float)
        return GiveUp(LockContended(contention.key)) if contention.attempt else WaitHere(0.5)


policies: list[Policy] = [
    Mine(),
    Fail(),
    Reschedule(backoff=FullJitter(base=0.1, cap=5), max_attempts=3, max_wait=None),
    Skip(then="continue"),
    Wait(timeout=2),
]
decision: Decision = Complete({"skipped": True}, then="stop")


def errors(
    contended: LockContended, timeout: LockTimeout, lost: LockLost, stale: StaleFencingToken
) -> TimeoutError:
    assert_type(contended.key, str)
    assert_type(contended.holder, str | None)
    assert_type(contended.seconds_left, float)
    assert_type(contended.hold, str)
    assert_type(timeout.waited, float)
    assert_type(lost.key, str)
    assert_type(lost.reason, str)
    of_celery_dlock: list[DLockError] = [contended, timeout, lost, stale]
    of_celery_dlock += [ConfigurationError("wrong"), BackendUnavailable("away")]
    assert_type(stale.resource, str)
    assert_type(stale.mine, int)
    assert_type(stale.seen, int | None)
    return timeout


def write(connection: sqlite3.Connection, lease: Lease) -> None:
    assert_type(fencing.create_table(connection), None)
    assert_type(fencing.admit(connection), None)
    assert_type(fencing.admit(connection, lease), None)
    fencing.admit(connection, resource="order:42", fencing_token=7, owner="me")
    assert_type(fencing.once(connection, "event-1"), bool)
    assert_type(fencing.once(connection, "event-1", resource="order:1"), bool)
    assert_type(redis_fence.transaction(None, lambda pipe: pipe.multi(), lease, once="e"), bool)
    assert_type(redis_fence.mint(None, "minted:42"), int)


def late_holder() -> None:
    late = testing.stale_holder(charge, 42)
    assert_type(late.wakes_up(), StaleFencingToken | LockLost)
    with testing.in_memory(app) as clock:
        assert_type(clock, testing.ManualClock)


# What must not pass, beside ``misuses.py``; an ignore that is not needed is an error too.
locked_task("key", lock_ttl=60)  # type: ignore[call-overload]
locked_task("key", acks_late="yes")  # type: ignore[call-overload]
locked_task("key", team="billing")  # type: ignore[call-overload]
fencing.admit(None, fencing_token=7)  # type: ignore[call-overload]
