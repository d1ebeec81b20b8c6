"""``[Limit(…), Shared(…), …]``: each key is held in its own way, and how such a task waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import (
    Lease,
    Limit,
    LockContended,
    LockedTask,
    Ordered,
    Queue,
    Replace,
    Shared,
    lock,
)
from celery_dlock.core.events import Released, Woken
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode
from celery_dlock.locks.other_keys import RESERVED_FOR
from celery_dlock.ops import actions
from celery_dlock.runtime import runtime
from celery_dlock.testing import held_by_another
from tests.services.below import elsewhere
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("clock")]

CATALOG, TENANT, IMPORT = "catalog", "tenant:7", "import"

EACH, ALL = 2, 3

LONG = 100_000 * SECOND


Make = Callable[..., LockedTask]


@pytest.fixture
def make(desk: Desk) -> Make:
    def make(**options: Any) -> LockedTask:
        given = {"name": "load", "on_contention": Queue(max_wait=None), **options}

        @desk.locked([Shared(CATALOG), Limit("tenant:{t}", EACH), Limit("import", ALL)], **given)
        def load(number: int, t: int = 7) -> None:
            desk.ran.append(number)

        return load

    return make


def fill(desk: Desk, key: str, limit: int, mode: Mode = Mode.LIMITED) -> list[Claim]:
    """Take all slots of *key*, for nobody in this process."""
    claims = [
        Claim(key, f"other-{n}:0:0", f"n{n}", LONG, mode=mode, limit=limit) for n in range(limit)
    ]
    for claim in claims:
        desk.store.enter(claim)
    return claims


def free(desk: Desk, *claims: Claim) -> None:
    runtime(desk.app).manager.take_back(claims)


def reserved(desk: Desk, key: str) -> list[str]:
    """The tasks that have a turn there and no message."""
    return [turn.task for turn in desk.store.peek(key).grants if not turn.parked]


@pytest.mark.every_store
def test_who_waits_for_the_wide_limit_keeps_its_narrow_slot(desk: Desk, make: Make) -> None:
    others = fill(desk, IMPORT, ALL)
    result = make().delay(1)
    desk.deliver()
    assert reserved(desk, TENANT) == [f"{result.id}:0:0"]
    assert (desk.store.peek(IMPORT).parked, nothing_is_left(desk, CATALOG)) == (1, True)

    free(desk, others[0])
    desk.deliver()

    assert (desk.ran, len(desk.happened(Woken))) == ([1], 1)
    free(desk, *others)
    assert all(nothing_is_left(desk, key) for key in (CATALOG, TENANT, IMPORT))


def test_a_turn_at_the_wide_one_goes_on_when_the_narrow_one_has_to_be_waited_for_again(
    desk: Desk, make: Make
) -> None:
    # Given one that has waited for so long that its slot of the narrow one is another's
    others = fill(desk, IMPORT, ALL)
    load = make()
    load.delay(1)
    load.delay(2, t=8)
    desk.deliver_all()
    desk.clock.advance(RESERVED_FOR / SECOND)
    narrow = fill(desk, TENANT, EACH)

    free(desk, others[0])
    desk.deliver()

    assert (desk.store.peek(TENANT).parked, reserved(desk, IMPORT)) == (1, [])
    desk.deliver_all()
    assert desk.ran == [2]
    free(desk, *narrow)
    desk.deliver_all()
    assert desk.ran == [2, 1]
    assert nothing_is_left(desk, TENANT)


def test_who_is_revoked_at_the_wide_one_ends_at_once_though_the_narrow_one_is_taken(
    desk: Desk, make: Make
) -> None:
    others = fill(desk, IMPORT, ALL)
    result = make().delay(1)
    desk.deliver()
    desk.clock.advance(RESERVED_FOR / SECOND)
    narrow = fill(desk, TENANT, EACH)

    assert actions.cancel(desk.app, IMPORT, f"{result.id}:0:0").carry_out("somebody")
    desk.deliver_all()

    assert result.state == "REVOKED"
    free(desk, *others, *narrow)
    assert all(nothing_is_left(desk, key) for key in (TENANT, IMPORT))


def test_a_writer_comes_between_readers_that_wait_for_a_limit(desk: Desk, make: Make) -> None:
    others = fill(desk, IMPORT, ALL)
    load = make()
    for number in range(3):
        load.delay(number)
    desk.deliver_all()

    # Readers that wait do not hold it off, And wait for it in their order
    with lock(CATALOG, app=desk.app, timeout=0):
        free(desk, *others)
        desk.deliver_all()
        assert (desk.ran, nothing_is_left(desk, IMPORT)) == ([], True)
    desk.deliver_all()
    assert desk.ran == [0, 1, 2]


def test_published_in_order_it_takes_its_place_at_the_narrowest(desk: Desk, make: Make) -> None:
    load = make(on_contention=Ordered())
    for number in range(5):
        load.delay(number)
    assert (desk.store.peek(TENANT).parked, nothing_is_left(desk, CATALOG)) == (3, True)

    desk.deliver_all()
    assert desk.ran == [0, 1, 2, 3, 4]


def test_the_newest_replaces_who_waits_at_the_narrowest_alone(desk: Desk, make: Make) -> None:
    load = make(on_contention=Replace())
    tenant, others = fill(desk, TENANT, EACH), fill(desk, IMPORT, ALL)
    sent = [load.delay(1), load.delay(2), load.delay(3, t=8), load.delay(4, t=9)]
    desk.deliver_all()
    free(desk, *tenant, *others)
    desk.deliver_all()

    assert (sorted(desk.ran), sent[0].get()["skipped"]) == ([2, 3, 4], True)


def test_the_newest_replaces_only_a_call_with_the_same_keys(desk: Desk) -> None:
    @desk.locked(["order:{order}", "shop:{shop}"], name="sync", on_contention="replace")
    def sync(number: int, order: int, shop: int) -> None:
        desk.ran.append(number)

    with held_by_another("order:1", app=desk.app):
        sent = [sync.delay(n, 1, shop) for n, shop in enumerate((7, 8, 7, 8))]
        desk.deliver_all()
    desk.deliver_all()

    assert desk.ran == [2, 3]
    assert [bool(result.get()) for result in sent] == [True, True, False, False]


def test_what_is_shared_beside_a_key_is_for_reading_and_nothing_else(desk: Desk) -> None:
    keys = [Shared(CATALOG), "order:{order}"]
    policy = Queue(max_waiting=1, keep=True)

    @desk.locked(keys, name="ship", on_contention=policy, reserve="retry")
    def ship(order: int, *, lease: Lease) -> tuple[str, ...]:
        desk.ran.append(order)
        return (lease.key, *lease.keys)

    with held_by_another(CATALOG, app=desk.app):
        sent = [ship.delay(order) for order in (1, 2, 3)]
        desk.deliver_all()
    desk.deliver_all()

    assert sorted(desk.ran) == [1, 2, 3]
    assert sent[0].get() == ["order:1", "order:1"]
    with lock(CATALOG, app=desk.app, timeout=0):
        assert ship(4) == ("order:4", "order:4")


def test_a_block_holds_each_key_in_its_own_way(desk: Desk) -> None:
    wanted = (Shared(CATALOG), "order:42", Limit(TENANT, EACH), Limit(IMPORT, ALL))

    with lock(wanted, app=desk.app, timeout=0) as lease:
        assert lease.keys == ("order:42", TENANT, IMPORT)
        assert list(lease.fencing_tokens) == ["order:42", TENANT, IMPORT]
        assert elsewhere(desk, Shared(CATALOG), Limit(IMPORT, ALL), Limit(TENANT, EACH))
        assert not elsewhere(desk, CATALOG)
        assert not elsewhere(desk, "order:42")
        # Below it, each is there already
        with lock([Limit(TENANT, EACH), Shared(CATALOG)], app=desk.app, timeout=0):
            pass
        with pytest.raises(LockContended), lock(TENANT, app=desk.app, timeout=0):
            pass


def test_each_of_several_keys_has_its_cooldown(desk: Desk) -> None:
    @desk.locked(
        [Limit("fast:{t}", 1, cooldown=10), "order:{t}"], name="slow", on_contention="fail"
    )
    def slow(t: int) -> None: ...

    slow(7)
    assert (len(desk.store.peek("fast:7").cooling), nothing_is_left(desk, "order:7")) == (1, True)
    with pytest.raises(LockContended, match="is cooling down"):
        slow(7)


# Tasks that wait for several keys: nobody blocks another one for good, and the order is kept.


KEYS = ("order:42", "stock")  # in the order in which they are taken


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked(["stock", "order:{order}"], name="charge", on_contention=Queue(max_wait=60))
    def charge(order: str, number: int) -> None:
        desk.ran.append(number)

    return charge


def publish(desk: Desk, charge: LockedTask, *numbers: int) -> None:
    for number in numbers:
        charge.delay("42", number)
        desk.deliver()


@pytest.mark.every_store
def test_who_waits_for_either_key_gets_both(desk: Desk, charge: LockedTask) -> None:
    # Given some that wait for the second key, the first of them called for it by now
    with lock("stock", app=desk.app, timeout=0):
        publish(desk, charge, 0, 1, 2)
        head = desk.take()
        assert head is None
    head = desk.receive()
    # And others that wait for the first one
    with lock("order:42", app=desk.app, timeout=0):
        publish(desk, charge, 3, 4)
    # When the turn of each stands against a turn of the other
    desk.run(head)
    desk.deliver_all()
    assert desk.ran == [0, 1, 2, 3, 4]
    assert len(desk.happened(Released)) == 5 + 2


def test_a_turn_at_a_key_that_the_task_does_not_have_any_more_is_given_back(desk: Desk) -> None:
    # Given one that waits, and a new version of it, which takes another key
    prefix = "old:"

    @desk.locked(lambda order: prefix + order, name="charge", on_contention=Queue(max_wait=60))
    def charge(order: str) -> int:
        return len(desk.store.peek("old:42").grants)

    result = charge.delay("42")
    with lock("old:42", app=desk.app, timeout=0):
        desk.deliver()
    prefix = "new:"
    # When it is woken
    desk.deliver()
    assert result.get() == 0
