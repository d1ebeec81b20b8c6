"""A user's module in the typed form, as strict as can be, with celery-types and without.

Nobody runs it. What must not pass is marked, and a mark that is not needed is an error.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, assert_type

from celery import Celery

from celery_dlock import (
    INJECTED,
    Debounce,
    Fail,
    FullJitter,
    Lease,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Shared,
    Skip,
    Unique,
    Wait,
    current_lease,
    idempotency_key,
    lock,
    locked_task,
)
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

app = Celery("shop")


@locked_task("order:{order_id}", app=app, ttl=30, on_contention="queue", acks_late=True)
def charge(order_id: int, amount: int = 1, *, fencing_token: int = INJECTED) -> str:
    return f"{order_id}: {amount} under {fencing_token + 1}"


@locked_task(["from:{source}", "to:{target}"], app=app, on_contention=Skip())
def transfer(source: str, target: str, *, amount: int, lease: Lease = INJECTED) -> int:
    lease.check()
    return amount


@locked_task(app=app)
def both(*, lease: Lease = INJECTED, fencing_token: int = INJECTED) -> None: ...


@locked_task
def nightly(day: str) -> int:
    return len(day)


@locked_task
def fenced_nightly(day: str, *, fencing_token: int = INJECTED) -> int:
    return fencing_token


@locked_task("order:{order_id}", app=app, bind=True)
def again(self: LockedTask, order_id: int, *, fencing_token: int = INJECTED) -> bool:
    return self.lease.fencing_token == fencing_token


@locked_task(
    Limit("order:{order_id}", 1, cooldown=60),
    app=app,
    bind=True,
    max_retries=3,
    autoretry_for=(TimeoutError,),
    retry_backoff=True,
    rate_limit="10/m",
    queue="orders",
    expires=3600,
)
def bound(self: LockedTask[..., bool], order_id: int) -> bool:
    return self.lease.lost


def plan(tenant: str, day: str = "") -> int:
    return len(tenant)


@locked_task(Limit("tenant:{tenant}", 3))
def three(tenant: str) -> None: ...


@locked_task([Limit("tenant:{tenant}", plan), Limit("mail", 100, cooldown=60), Shared("catalog")])
def by_plan(tenant: str, day: str = "") -> int:
    return len(day)


@locked_task(Shared("catalog"), app=app, bind=True)
def reading(self: LockedTask, tenant: str) -> str:
    return tenant


@locked_task()
def alone() -> None: ...


@locked_task("order:{order_id}", app=app, bind=True)
async def fetched(self: LockedTask, order_id: int) -> str:
    async with lock("stock", app=app) as lease:
        assert_type(await lock("stock").alocked(), bool)
        return lease.key


@locked_task("order:{order_id}", acks_late=True, reject_on_worker_lost=True, time_limit=300)
def charge_once(order_id: int) -> str:
    assert_type(current_lease(), Lease)
    assert_type(current_lease(default=None), Lease | None)
    return idempotency_key("charge")


def work(order_id: int, tenant: str = "") -> str:
    return tenant


def key_of(order_id: int, tenant: str = "") -> str:
    return f"order:{order_id}"


class SkipWhenLate:
    """A policy of the shop's own."""

    def decide(self, contention: Contention) -> Decision:
        holder: HolderInfo | None = contention.holder
        if holder is None:
            return RunLater(countdown=1)
        if contention.attempt > 3:
            return GiveUp(TimeoutError(holder.task_id))
        return Complete({"late": True}, then="continue") if contention.full else WaitHere(0.5)

    def patience(self, attempt: int) -> float:
        return 1.0


def each_line_of_the_interface() -> None:
    assert_type(locked_task("order:{order_id}")(work)(42), str)
    assert_type(locked_task("order:{order_id}", on_contention="reschedule")(work)(42), str)
    assert_type(locked_task("order:{order_id}", on_contention="queue")(work)(42), str)
    assert_type(locked_task("report", on_contention="skip")(work)(42), str)
    assert_type(locked_task("report", on_contention="fail")(work)(42), str)
    assert_type(locked_task("report", on_contention="wait")(work)(42), str)
    assert_type(locked_task("order:{order_id}", on_contention="ordered")(work)(42), str)
    assert_type(locked_task("index", on_contention="replace")(work)(42), str)
    assert_type(locked_task(Limit("tenant:{tenant}", 3))(work)(42), str)
    assert_type(locked_task(Limit(key_of, n=3, cooldown=None))(work)(42), str)
    assert_type(locked_task([Shared(key_of), "report", key_of])(work)(42), str)
    assert_type(locked_task(key=key_of)(work)(42), str)
    assert_type(locked_task(None, ttl=None)(work)(42), str)
    assert_type(locked_task("order:{order_id}", unique="done")(work)(42), str)
    assert_type(locked_task("order:{order_id}", unique="start")(work)(42), str)
    assert_type(locked_task("order:{order_id}", unique=None)(work)(42), str)
    assert_type(locked_task("order:{order_id}", unique=Debounce(10, 60))(work)(42), str)
    by_tenant = Debounce(delay=10, max_delay=60, by="{tenant}")
    assert_type(locked_task("order:{order_id}", unique=by_tenant)(work)(42), str)
    of_key = Unique(until="done", by=key_of, period=None, ttl=86400)
    assert_type(locked_task("order:{order_id}", unique=of_key)(work)(42), str)
    parents = [Shared("orders"), Shared(key_of)]
    assert_type(locked_task(["order:{order_id}", *parents])(work)(42), str)
    assert_type(locked_task("order:{order_id}", reserve="retry")(work)(42), str)
    assert_type(locked_task("order:{order_id}", reserve="chain")(work)(42), str)
    assert_type(locked_task("order:{order_id}", reserve=None)(work)(42), str)
    assert_type(locked_task("order:{order_id}", on_lost="flag")(work)(42), str)
    assert_type(locked_task("order:{order_id}", on_lost="abort")(work)(42), str)


#: Each policy with all of its options.
POLICIES: list[Policy] = [
    Queue(max_waiting=None, overflow="fail", max_wait=86400, keep=False),
    Queue(max_waiting=3, overflow="drop_oldest", max_wait=None, keep=True),
    Queue(overflow="drop_newest"),
    Ordered(max_waiting=None, overflow="fail", max_wait=86400, on_failure="next"),
    Ordered(on_failure="hold"),
    Reschedule(backoff=FullJitter(base=0.1, cap=5), max_attempts=3, max_wait=None),
    Replace(running=True, max_wait=86400),
    Skip(then="continue"),
    Fail(),
    Wait(timeout=2),
    SkipWhenLate(),
]


def call_them() -> None:
    assert_type(alone(), None)
    assert_type(fetched.delay(42).is_duplicate, bool)
    assert_type(charge_once(42), str)
    assert_type(three("acme"), None)
    assert_type(by_plan("acme"), int)
    assert_type(reading("acme"), str)
    assert_type(charge(42, 10), str)
    assert_type(charge(order_id=42), str)
    assert_type(charge.run(42, 10, fencing_token=7), str)
    assert_type(transfer("a", "b", amount=5), int)
    assert_type(nightly("2026-11-24"), int)
    assert_type(fenced_nightly("2026-11-24"), int)
    assert_type(again(42), bool)
    assert_type(bound(42), bool)
    charge.delay(42, amount=10)
    charge.apply_async((42,), countdown=5)
    charge.si(42, 10)
    charge.s(42, 10)
    charge.s(10)  # in a chain it is given its order
    charge.s(amount=10)
    again.delay(42)
    both.delay()
    assert_type(charge.delay(42).is_duplicate, bool)
    assert_type(charge.delay_on_commit(42, amount=10), None)
    charge.apply_async_on_commit((42,), countdown=5)


def not_like_this() -> None:
    charge("42")  # type: ignore[arg-type]
    charge.delay()  # type: ignore[call-arg]
    charge.delay(42, 10, 7)  # type: ignore[call-arg]
    charge.delay(42, fencing="no")  # type: ignore[call-arg]
    charge.delay_on_commit("42")  # type: ignore[arg-type]
    charge.s("2026", "11", "24")  # type: ignore[call-overload]
    charge.si()  # type: ignore[call-arg]
    transfer.delay("a", "b")  # type: ignore[call-arg]
    transfer.delay("a", "b", amount="5")  # type: ignore[arg-type]
    again.delay("42")  # type: ignore[arg-type]
    nightly(7)  # type: ignore[arg-type]


class Alerting(LockedTask):
    """A base class of the project's, which says nothing of the bodies."""

    abstract = True
    lock_on_contention = "reschedule"

    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.lease.check()


@locked_task("order:{order_id}", app=app, base=Alerting)
def refund(order_id: int) -> int:
    return order_id


async def in_a_request() -> int:
    async with lock([Limit("mail", 100, cooldown=60), Shared("catalog")], app=app):
        pass
    async with lock("order:42", app=app, ttl=None, timeout=5.0) as lease:
        return lease.fencing_token


def use_them(policy: Policy) -> list[LockedTask[..., object]]:
    locked_task("key", app=app, on_contention=policy)
    with lock("order:42", app=app, timeout=0) as lease:
        assert_type(lease, Lease)
    with lock(Shared("catalog"), app=app) as lease:
        assert_type(lease, Lease)
    return [charge, transfer, nightly, refund]
